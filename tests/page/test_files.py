"""Files of messages on the chat page, in a headless Chromium."""

from __future__ import annotations

import base64
import struct

import pytest

from tests.page.pages import IS_IDLE, RESPONSE, chat, give, page_of, start_with, tab_of
from tests.support.fakes import FakeProjector
from tests.support.media_files import jpeg, png
from tests.support.serving import BIG, generating

SEES = {**BIG, "modalities": ("image",), "projector": FakeProjector()}
IMAGE = ("image/png", png(30, 20))
# createImageBitmap waits until the test calls `go`.
SLOW = """const read = createImageBitmap;
createImageBitmap = (file) => new Promise((done) => { go = () => done(read(file)) })"""


def turned(photo: bytes, orientation: int) -> bytes:
    """A JPEG with an EXIF orientation."""
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    body = b"Exif\0\0" + b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", 1) + entry + struct.pack("<I", 0)
    return photo[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + photo[2:]


def sent_parts(page) -> list[dict]:
    return page.sent[-1]["messages"][-1]["content"]


def test_message_waits_for_files_that_are_being_read(browser):
    with page_of(browser, generating("Seen."), **SEES) as (page, _):
        start_with(page, SLOW)
        give(page, {"big.png": IMAGE}, "#input", "paste")
        page.do(("#input", "look\n"))
        page.press("Enter", 13)
        page.wait_for_text("#status", "Reading the files")
        assert page.sent == []
        page.eval("go()")
        page.wait(f"{IS_IDLE} && $('{RESPONSE}').innerText === 'Seen.'")
        assert [part["type"] for part in sent_parts(page)] == ["image_url", "text"]
        assert page.eval("$$('.user').length") == 1


def test_message_is_not_sent_without_a_file_that_cannot_be_read(browser):
    with page_of(browser, generating("Seen."), **SEES) as (page, _):
        start_with(page, SLOW)
        give(page, {"bad.png": ("image/png", b"no image")}, "#input", "paste")
        page.do(("#input", "look\n"))
        page.eval("go()")
        page.wait_for_text("#status", "bad.png cannot be attached")
        assert page.eval("[$('#input').value, $$('.message').length]") == ["look", 0]


@pytest.mark.parametrize(
    ("text", "name", "n_files"),
    [("1\t2", "image.png", 0), ("", "image.png", 1), ("photo.png", "photo.png", 1)],
    ids=["spreadsheet", "picture alone", "file with its name"],
)
def test_paste_of_text_with_a_picture_of_it_is_text(browser, text, name, n_files):
    with page_of(browser, generating("x"), **SEES) as (page, _):
        give(page, {name: IMAGE}, "#input", "paste", text)
        page.wait(f"$$('#attached figure').length === {n_files} && window.isTextPasted === {str(not n_files).lower()}")
        page.eval("void $('#attached button')?.click()")


def test_photo_is_sent_as_it_is_shown(browser):
    with page_of(browser, generating("Seen."), **SEES) as (page, _):
        give(page, {"photo.jpg": ("image/jpeg", turned(jpeg(32, 16), 6))})
        page.do(("#attached img", 1))
        page.wait("$('#attached img').naturalHeight === 32")
        page.do("#send")
        page.wait(IS_IDLE)
        data = base64.b64decode(sent_parts(page)[0]["image_url"]["url"].partition(",")[2])
        assert b"Exif" not in data
        assert struct.pack(">HH", 32, 16) in data  # the height and the width in the frame header


def test_texts_are_attached_whatever_the_model_sees(browser):
    files = {"a.py": ("text/x-python", b"print('```')"), "b": ("", "ü".encode("utf-16"))}
    with page_of(browser, generating("Read."), **BIG) as (page, running):
        give(page, files)
        page.do(("#attached figure", 2), ("#input", "explain\n"))
        page.wait(IS_IDLE)
        assert running.last_prompt == "a.py:\n````\nprint('```')\n````\n\nb:\n```\nü\n```\n\nexplain"
        page.reload()
        page.do((".user figure", 2))
        give(page, {"a.bin": ("", b"\xff\0"), "big.txt": ("text/plain", b"a" * 1_000_001)})
        page.wait_for_text("#status", "big.txt cannot be attached: it has 1,000,001 bytes; a text may have 1,000,000.")
        assert page.eval("$$('#attached figure').length") == 0


# Where a file is attached, what the user does then here and in another tab, and the title that is then shown.
KEPT = {
    "new chat": ("#new", ["#new"], [], "New chat"),
    "there and back": ("#new", ["#list .pick", "#new"], [], "New chat"),
    "deleted": ("#list .pick", ["#list .act: ✕", "#ask button: Delete"], [], "New chat"),
    "renamed in another tab": ("#list .pick", [], ["[aria-label='Rename one']", ("#list input", "two\n")], "two"),
    "deleted in another tab": ("#list .pick", [], ["#list .act: ✕", "#ask button: Delete"], "New chat"),
}


@pytest.mark.parametrize(("place", "here", "elsewhere", "title"), KEPT.values(), ids=KEPT)
def test_files_stay_with_the_text_that_is_being_written(browser, place, here, elsewhere, title):
    with page_of(browser, generating("Read."), **BIG) as (page, running), tab_of(browser, running) as other:
        chat(page, "one", "Read.")
        other.do(("#list li", 1))
        page.do(place)
        give(page, {"a.py": ("", b"x = 1")})
        page.do(("#attached figure", 1), ("#input", "draft"))
        assert page.eval("dispatchEvent(new Event('beforeunload', { cancelable: true }))") is False
        page.do(*here)
        other.do(*elsewhere)
        page.wait_for_text("#title", title)
        assert page.eval("[$('#input').value, $$('#attached figure').length]") == ["draft", 1]
        page.do("#send")
        page.wait(f"{IS_IDLE} && $$('.user').at(-1).innerText.includes('draft')")
        assert sent_parts(page) == "a.py:\n```\nx = 1\n```\n\ndraft"
