"""The Review tab: accept, correct, skip and undo, by mouse and keyboard, alone and in company."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from hill.data.answers import Answer, read_answers
from tests.browser.conftest import open_at
from tests.browser.taxonomies import IMAGE
from tests.browser.test_keyboard import CONTRAST, CONTROLS

Reviews = list[tuple[str, Path]]


@pytest.fixture
def address(reviews: Reviews) -> str:
    return reviews[0][0]


@pytest.fixture
def answers(reviews: Reviews) -> Path:
    return reviews[0][1]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Each test is a reviewer of its own."""
    return request.node.name


@pytest.fixture
def page(blank: Page, address: str, name: str) -> Iterator[Page]:
    blank.add_init_script("localStorage.clear()")
    yield start(blank, address, name)


def start(page: Page, address: str, name: str) -> Page:
    open_at(page, f"{address}/#review")
    page.get_by_label("Your name").fill(name)
    page.keyboard.press("Enter")
    expect(page.locator("#review-title")).to_be_focused()
    return page


def title(page: Page) -> str:
    return page.locator("#review-title").inner_text().removeprefix("Document ")


def chosen(page: Page) -> list[str]:
    return page.locator(".chosen .names").all_inner_texts()


def saved(answers: Path, name: str) -> list[Answer]:
    return [answer for answer in read_answers(answers) if answer.reviewer == name]


def settle(page: Page) -> None:
    expect(page.locator("#review")).not_to_have_attribute("aria-busy", "true")


def test_texts_and_suggestions(page: Page) -> None:
    """The first test: it gets the first document of the queue, whose text looks like HTML."""
    assert title(page) == "d0" and page.locator(".document").inner_text() == f"{IMAGE} wing"
    assert chosen(page) == ["Animals›Flyers›Others"], "of the queue"
    expect(page.locator("#review")).to_contain_text("uncertain")
    assert page.title() != "broken"


def test_accept_with_the_keyboard(page: Page, answers: Path, name: str) -> None:
    document, labels = title(page), chosen(page)
    assert labels
    page.keyboard.press("a")
    expect(page.locator("#review-title")).not_to_have_text(f"Document {document}")
    expect(page.locator("#review-title")).to_be_focused()
    expect(page.locator("#review-progress")).to_contain_text("1 by you")
    (answer,) = saved(answers, name)
    assert (answer.id, answer.action, len(answer.labels)) == (document, "accept", len(labels))


def test_correct_with_the_keyboard(page: Page, answers: Path, name: str) -> None:
    expect(page.get_by_role("button", name="Accept")).to_be_visible()
    for remove in page.locator(".chosen button").all():
        remove.press("Enter")
    expect(page.locator(".chosen")).to_contain_text("No label is chosen")
    save = page.get_by_role("button", name="Save correction")
    expect(save).to_be_disabled()
    page.locator("#review-title").focus()
    page.keyboard.press("/")
    page.keyboard.type("othe")
    expect(page.locator("#review .hit")).to_have_count(2)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".chosen .names")).to_have_text(["Animals›Flyers›Others"])
    expect(page.locator("#live")).to_contain_text("Others added. 1 label chosen.")
    expect(page.locator("#review-search")).to_be_focused()
    page.keyboard.type("plants")
    page.keyboard.press("Enter")  # before the list is there
    expect(page.locator(".chosen .names")).to_have_text(["Animals›Flyers›Others", "Plants"])
    page.keyboard.press("Control+Enter")
    expect(page.locator("#review-progress")).to_contain_text("1 by you")
    (answer,) = saved(answers, name)
    assert (answer.action, answer.labels) == ("correct", ("fo", "p"))


def test_other_likely_labels_have_numbers(page: Page) -> None:
    before = chosen(page)
    second = page.locator(".likely .names").nth(1).inner_text()
    page.keyboard.press("2")
    expect(page.locator(".chosen .names")).to_have_text([*before, second])
    expect(page.get_by_role("button", name="Save correction")).to_be_enabled()
    page.locator(".chosen button").nth(-1).click()
    expect(page.locator(".chosen .names")).to_have_text(before)
    expect(page.get_by_role("button", name="Accept")).to_be_visible()


def test_the_tree_chooses_too(page: Page) -> None:
    page.locator("#review summary").click()
    for remove in page.locator(".chosen button").all():
        remove.click()
    tree = page.get_by_role("tree", name="Taxonomy, to choose labels")
    tree.locator(".row", has_text="Plants").click()
    expect(page.locator(".chosen .names")).to_have_text(["Plants"])
    expect(tree.get_by_role("treeitem", name="Plants")).to_have_class("predicted")
    expect(tree.get_by_role("treeitem", name="Plants")).to_be_focused()
    page.keyboard.press("a")  # in the tree, letters find names
    expect(tree.get_by_role("treeitem", name="Animals").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".chosen .names")).to_have_text(["Plants", "Animals"])
    page.keyboard.press("Enter")
    expect(page.locator(".chosen .names")).to_have_text(["Plants"])


def test_skip_and_undo(page: Page, answers: Path, name: str) -> None:
    first = title(page)
    page.get_by_role("button", name="Skip").click()
    expect(page.locator("#review-title")).not_to_have_text(f"Document {first}")
    second = title(page)
    assert [answer.action for answer in saved(answers, name)] == ["skip"]
    page.keyboard.press("u")
    expect(page.locator("#review-title")).to_have_text(f"Document {first}")
    assert saved(answers, name) == []
    settle(page)
    page.keyboard.press("1")
    expect(page.locator(".chosen .names")).to_have_count(2)
    labels = chosen(page)
    page.keyboard.press("a")
    expect(page.locator("#review-title")).to_have_text(f"Document {second}")
    settle(page)
    page.keyboard.press("u")
    expect(page.locator("#review-title")).to_have_text(f"Document {first}")
    assert sorted(chosen(page)) == sorted(labels), "as they were answered"
    settle(page)
    page.keyboard.press("u")
    expect(page.locator("#review .note")).to_have_text("There is no answer of yours to undo.")
    expect(page.locator("#review-title")).to_have_text(f"Document {first}")


def test_two_reviewers_at_once(page: Page, address: str, answers: Path, name: str, browser: Browser) -> None:
    """Even with the same name, they get different documents, and no answer is lost."""
    other = start(browser.new_context().new_page(), address, name)
    seen = []
    for _ in range(4):
        seen += [title(page), title(other)]
        for reviewer in (page, other):
            settle(reviewer)
            before = title(reviewer)
            reviewer.keyboard.press("a")
            expect(reviewer.locator("#review-title")).not_to_have_text(f"Document {before}")
    assert len(set(seen)) == 8 and sorted(answer.id for answer in saved(answers, name)) == sorted(seen)
    other.context.close()


@pytest.fixture
def browser(context: BrowserContext) -> Browser:
    assert context.browser
    return context.browser


@pytest.mark.parametrize("expected_errors", [["503"]])
def test_an_answer_that_cannot_be_saved_stays_on_the_screen(page: Page, answers: Path, name: str) -> None:
    document = title(page)
    detail = '{"detail": "nothing was saved: the disk is full"}'
    page.route("**/v1/review/answers", lambda route: route.fulfill(status=503, body=detail))
    page.keyboard.press("2")
    labels = chosen(page)
    page.keyboard.press("a")
    expect(page.get_by_role("alert").filter(has_text="Nothing was saved: the disk is full.")).to_be_visible()
    assert (title(page), chosen(page), saved(answers, name)) == (document, labels, [])
    page.unroute("**/v1/review/answers")
    page.keyboard.press("a")
    expect(page.locator("#review-title")).not_to_have_text(f"Document {document}")
    assert len(saved(answers, name)) == 1
    expect(page.get_by_role("alert").filter(has_text="Nothing was saved")).to_have_count(0)


def test_shortcuts_can_be_turned_off(page: Page, answers: Path, name: str) -> None:
    page.get_by_label("Single-key shortcuts").uncheck()
    document = title(page)
    page.locator("#review-title").focus()
    for key in ("a", "s", "1", "/"):
        page.keyboard.press(key)
    page.wait_for_timeout(200)
    assert (title(page), saved(answers, name)) == (document, [])
    expect(page.locator("#review-title")).to_be_focused()
    page.keyboard.press("Control+Enter")
    expect(page.locator("#review-progress")).to_contain_text("1 by you")


def test_letters_in_a_field_are_text(page: Page, answers: Path, name: str) -> None:
    page.locator("#review-search").fill("")
    page.locator("#review-search").press_sequentially("as1u")
    expect(page.locator("#review .hits")).to_contain_text("No label's name or id contains “as1u”.")
    assert saved(answers, name) == []


def test_every_control_has_a_name(page: Page) -> None:
    page.locator("#review summary").click()
    expect(page.locator("#review [role=treeitem]").first).to_be_visible()
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    found = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]]
    controls = [(role, name) for role, name in found if role in CONTROLS | {"checkbox", "progressbar"}]
    assert {"button", "textbox", "searchbox", "treeitem", "checkbox", "progressbar"} <= {role for role, _ in controls}
    assert all(name.strip() for _, name in controls), controls


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_of_text(page: Page, scheme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=scheme)
    page.locator("#review summary").click()
    ratios = page.evaluate(CONTRAST)
    assert len(ratios) > 20
    assert min(ratios)[0] >= 4.5, min(ratios)


@pytest.mark.parametrize("width", [375, 768])
def test_no_horizontal_scrolling(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 740})
    page.locator("#review summary").click()
    page.locator(".document").evaluate("node => { node.textContent = 'long'.repeat(200) }")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    expect(page.get_by_role("button", name="Skip")).to_be_in_viewport()
    small = page.locator("#review button:visible").evaluate_all("all => all.filter((b) => b.offsetHeight < 24)")
    assert small == []


def test_tabs_with_arrow_keys(page: Page) -> None:
    page.locator("#tab-table").click()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-review")).to_be_focused()
    expect(page.locator("#review-title")).to_be_visible()
    expect(page.locator("#strategy")).to_be_hidden()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-text")).to_be_focused()
    expect(page.locator("#strategy")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#tab-review")).to_be_focused()


def test_the_name_is_remembered(blank: Page, address: str) -> None:
    start(blank, address, "remembered")
    document = title(blank)
    blank.reload()
    expect(blank.locator("#review-title")).to_have_text(f"Document {document}")
    expect(blank.get_by_label("Your name")).to_have_value("remembered")
    blank.evaluate("localStorage.clear()")


def test_the_end_of_the_queue(blank: Page, reviews: Reviews, browser: Browser, name: str) -> None:
    address, answers = reviews[1]
    first, second = start(blank, address, name), start(browser.new_context().new_page(), address, "other")
    first.keyboard.press("a")
    expect(first.locator("#review .note")).to_contain_text("1 document left, which other reviewers have now.")
    second.keyboard.press("s")
    expect(second.locator("#review .note")).to_have_text("All 2 documents are done. Thank you.")
    first.get_by_role("button", name="Check again").click()
    expect(first.locator("#review .note")).to_have_text("All 2 documents are done. Thank you.")
    assert {answer.action for answer in read_answers(answers)} == {"accept", "skip"}
    first.get_by_role("button", name="Undo").click()
    expect(first.locator("#review-title")).to_be_visible()
    second.context.close()
    blank.evaluate("localStorage.clear()")


def test_without_a_queue_there_is_no_tab(blank: Page, servers: list[str]) -> None:
    open_at(blank, servers[0])
    expect(blank.locator("#tab-review")).to_be_hidden()
    blank.locator("#tab-table").focus()
    blank.keyboard.press("ArrowRight")
    expect(blank.locator("#tab-text")).to_be_focused()
