"""Take the README's screenshot of the report of a quick-start run.

    python docs/screenshot.py    # writes docs/report.png

Needs Playwright and a Chromium on the PATH. The page uses the system font; the image in the repository was taken with Inter.
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
WIDTH, HEIGHT = 1180, 1330


def evaljournal(directory: Path, *arguments: str) -> None:
    """Run `evaljournal` in a directory."""
    code = "from evaljournal.runner.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, *arguments], cwd=directory, check=True, timeout=120)  # noqa: S603 - our own command


def take_screenshot(address: str) -> None:
    """Open the report, filter the trials that fail, and save the image."""
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--font-render-hinting=none"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.3)
        page.goto(address)
        page.wait_for_selector("main:not([aria-busy])")
        page.click("[data-filter=fails]")
        page.mouse.move(0, 0)
        page.wait_for_timeout(200)
        page.screenshot(path=TARGET)
        browser.close()


def main() -> None:
    """Run the quick start and its report in a temporary directory."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        shutil.copytree(ROOT / "examples", directory / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        evaljournal(directory, "run", "examples/quickstart.py")
        evaljournal(directory, "report")
        take_screenshot((directory / "report.html").as_uri())
    sys.stdout.write(f"{TARGET.relative_to(ROOT)}: {os.path.getsize(TARGET):,} bytes\n")


if __name__ == "__main__":
    main()
