"""Pictures of pages as people see them, to be looked at: light and dark, wide and narrow.

python .ci/screenshots.py DIRECTORY PAGE.html ...      # needs playwright and Chromium (CHROMIUM may name the program)

A page that is wider than its window, asks for anything from elsewhere, or complains in the console is an error.
"""

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def main(directory: str, *pages: str) -> int:
    out, wrong = Path(directory), []
    out.mkdir(parents=True, exist_ok=True)
    program = os.environ.get("CHROMIUM") or next(p for p in map(shutil.which, NAMES) if p)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for file in map(Path, pages):
            for scheme in ("light", "dark"):
                for width in (1280, 420):
                    name = f"{file.parent.name}-{file.stem}-{scheme}-{width}"
                    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                    page.on("console", lambda m, name=name: wrong.append(f"{name}: {m.text}"))
                    page.on("request", lambda r, n=name: r.url.startswith("http") and wrong.append(f"{n}: {r.url}"))
                    page.goto(file.resolve().as_uri())
                    page.wait_for_timeout(300)
                    over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                    if over > 0:
                        wrong.append(f"{name}: {over} px wider than its window")
                    page.screenshot(path=out / f"{name}.png", full_page=True)
                    page.close()
        browser.close()
    print("\n".join(wrong) or f"fine: {4 * len(pages)} pictures in {out}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
