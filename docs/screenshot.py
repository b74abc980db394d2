"""Take the README's screenshot of the report of a quick-start run.

    python docs/screenshot.py    # writes docs/report.png

Needs Playwright and a Chromium on the PATH. The page uses the system font; the picture in the repository was made with Inter.
"""  # noqa: INP001 - a script, not a package

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "report.png"
WIDTH, HEIGHT = 1120, 968
AT = 0.55
"""Position of the scrubber, as a share of the records."""


def evaljournal(folder: Path, *words: str) -> None:
    """Run `evaljournal` in a folder."""
    code = "from runner.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, *words], cwd=folder, check=True, timeout=120)  # noqa: S603 - our own command


def picture(address: str) -> None:
    """Open the report, move the scrubber, and take the picture."""
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--font-render-hinting=none"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.4)
        page.goto(address)
        page.wait_for_selector("main:not([aria-busy])")
        page.evaluate("share => page.history.go(Math.round(share * page.run.seq))", AT)
        page.wait_for_timeout(200)
        page.screenshot(path=TARGET)
        browser.close()


def main() -> None:
    """Run the quick start and its report in a temporary directory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        evaljournal(folder, "run", "examples/quickstart.py")
        evaljournal(folder, "report")
        picture((folder / "report.html").as_uri())
    sys.stdout.write(f"{TARGET.relative_to(ROOT)}: {os.path.getsize(TARGET):,} bytes\n")


if __name__ == "__main__":
    main()
