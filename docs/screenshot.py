"""Play the quick start, make a report of it, and take the picture of it that the README shows.

    python docs/screenshot.py    # writes docs/report.png

It needs Playwright and a Chromium on the PATH. The letters are those of the font that the machine uses for its own windows; the
picture in the repository was made with Inter.
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
"""How far through the run the scrubber stands."""


def play(folder: Path, *words: str) -> None:
    """Run our command in a folder."""
    code = "from runner.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, *words], cwd=folder, check=True)  # noqa: S603 - our own command


def picture(address: str) -> None:
    """Open the report, put the scrubber where something can be seen, and take the picture."""
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
    """Make everything in a temporary directory, but for the picture."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        play(folder, "run", "examples/quickstart.py")
        play(folder, "report")
        picture((folder / "report.html").as_uri())
    sys.stdout.write(f"{TARGET.relative_to(ROOT)}: {os.path.getsize(TARGET):,} bytes\n")


if __name__ == "__main__":
    main()
