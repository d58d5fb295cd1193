"""One text: predicted paths, words, strategy and threshold, two models."""

import math
from dataclasses import replace

import pytest
from playwright.sync_api import Page, Route, expect

from hill.classifier import HillClassifier
from hill.explain import explain
from tests.browser.conftest import Models, classify

TEXT = "cave echo night fur wing"
PARENTS = {"a": [], "m": ["a"], "f": ["a"], "bat": ["m", "f"], "mo": ["m"], "fo": ["f"], "p": []}
NAMES = {"a": "Animals", "m": "Mammals", "f": "Flyers", "bat": "Bats", "mo": "Others", "fo": "Others", "p": "Plants"}


def rows(page: Page, panel: int = 0) -> list[str]:
    items = page.locator(".panel").nth(panel).get_by_role("treeitem").all()
    return [f"{item.get_attribute('aria-level')} {item.get_attribute('aria-label')}" for item in items]


def expected_rows(classifier: HillClassifier, text: str) -> set[str]:
    """The rows of the animals: the roots, and the children of predicted labels with a predicted child."""
    chosen = set(classifier.predict([text])[0])
    scores = dict(zip(classifier.taxonomy.ids, classifier.predict_proba([text])[0].tolist(), strict=True))
    found = set()

    def visit(label: str, level: int) -> None:
        mark = ", predicted" if label in chosen else ""
        found.add(f"{level} {NAMES[label]}, score {rounded(scores[label])}{mark}")
        below = [child for child, parents in PARENTS.items() if label in parents]
        if label in chosen and chosen.intersection(below):
            for child in below:
                visit(child, level + 1)

    for root in ("a", "p"):
        visit(root, 1)
    return found


def rounded(score: float) -> str:
    return f"{math.floor(score * 100 + 0.5) / 100:.2f}"


def test_the_first_visit_shows_the_taxonomy_and_an_example_fits_it(page: Page) -> None:
    assert rows(page) == ["1 Animals", "1 Plants"]
    expect(page.locator(".panel").first).to_contain_text("linear")
    expect(page.locator(".panel").first).to_contain_text("7 labels, 3 levels")
    page.click("#example")
    expect(page.locator("#text")).to_have_value("Animals. Mammals. Bats: Mammals with wings.")
    expect(page.locator(".state")).not_to_contain_text("Paste a text")


def test_predicted_paths_are_open_with_their_scores(page: Page, models: Models) -> None:
    classify(page, TEXT)
    assert set(models.animals.predict([TEXT])[0]) == {"a", "m", "f", "bat"}
    assert set(rows(page)) == expected_rows(models.animals, TEXT)
    assert sum("Bats" in row for row in rows(page)) == 2, "bats are under both parents"
    expect(page.locator(".paths button")).to_have_count(len(models.animals.predict_paths([TEXT])[0]))
    expect(page.locator(".paths button").first).to_contain_text("Bats")
    expect(page.locator("#live")).to_contain_text("1 path predicted: Bats")


def test_the_length_of_a_bar_is_the_score(page: Page, models: Models) -> None:
    classify(page, TEXT)
    scores = models.animals.predict_proba([TEXT])[0]
    item = page.get_by_role("treeitem", name="Plants")
    part, whole = (item.locator(name).evaluate("bar => bar.offsetWidth") for name in (".fill", ".bar"))
    assert part / whole == pytest.approx(scores[-1], abs=0.03)


@pytest.mark.parametrize("text", [TEXT, "𝒳 😀 cave\n  echo, é leaf wing night"])
def test_words_are_marked_at_their_positions(page: Page, models: Models, text: str) -> None:
    classify(page, text)
    page.get_by_role("treeitem", name="Bats").first.locator(".row").click()
    page.wait_for_selector("#why .terms")
    expect(page.get_by_role("treeitem", name="Bats").first).to_have_attribute("aria-selected", "true")
    found = explain(models.animals, text, ["bat"])
    values = found.labels[0].values
    most = max(map(abs, values))
    marked = [(m.inner_text(), m.get_attribute("class")) for m in page.locator("#why .text mark").all()]
    assert marked == [
        (word.text, "for" if value > 0 else "against")
        for word, value in zip(found.words, values, strict=True)
        if abs(value) / most >= 0.12
    ]
    assert page.locator("#why .text").evaluate("node => node.textContent") == text
    expect(page.locator("#why")).to_contain_text("Animals › Mammals › Bats")
    expect(page.locator("#why")).to_contain_text("Mammals with wings.")


def test_for_and_against_differ_without_colour(page: Page) -> None:
    classify(page, "cave leaf root bark")
    page.get_by_role("treeitem", name="Plants").locator(".row").click()
    lines = {
        side: page.locator(f"#why .key .{side}").evaluate("mark => getComputedStyle(mark).borderBottomStyle")
        for side in ("for", "against")
    }
    assert lines == {"for": "solid", "against": "dotted"}
    expect(page.locator("#why .terms section").first).to_contain_text("leaf")
    expect(page.locator("#why .terms section").last).to_contain_text("−")


def test_strategy_and_threshold_change_the_labels(page: Page, models: Models) -> None:
    classify(page, TEXT)
    asked: list[dict[str, object]] = []
    page.on("request", lambda request: asked.append(request.post_data_json) if "predict" in request.url else None)
    with page.expect_response("**/v1/predict"):
        for value in (60, 70, 80, 90, 99):
            page.locator("#threshold").evaluate(
                "(slider, value) => { slider.value = value / 100; slider.dispatchEvent(new Event('input')) }", value
            )
    expect(page.locator("#threshold-value")).to_have_text("0.99")
    expect(page.locator(".state")).to_contain_text("No label scores above the threshold")
    assert [body["threshold"] for body in asked] == [0.99], "one request per movement of the slider"
    with page.expect_response("**/v1/predict"):
        page.select_option("#strategy", "path")
    expect(page.locator("#threshold")).to_be_disabled()
    assert asked[-1]["strategy"] == "path" and "threshold" not in asked[-1]
    config = replace(models.animals.decode_config, strategy="path")
    other = HillClassifier.load(models.folders["animals"], device="cpu")
    other.decode_config = config
    expect(page.locator(".paths button")).to_have_count(len(other.predict_paths([TEXT])[0]))


def test_the_threshold_can_be_reset(page: Page) -> None:
    classify(page, TEXT)
    page.locator(".paths button").click()
    expect(page.locator("#why .about")).to_contain_text(", predicted")
    page.locator("#threshold").press("End")
    expect(page.locator(".state")).to_contain_text("No label scores above")
    expect(page.locator("#why .about")).to_contain_text("not predicted")
    page.click("#threshold-own")
    expect(page.locator("#threshold-value")).to_have_text("default of the model")
    expect(page.locator(".paths button")).to_have_count(1)


def test_two_models_side_by_side(page: Page, models: Models) -> None:
    page.select_option("#other", "fewer")
    expect(page.locator(".panel")).to_have_count(2)
    classify(page, TEXT)
    expect(page.locator("[aria-busy]")).to_have_count(0)
    expect(page.locator(".panel").nth(1).locator(".paths")).to_be_visible()
    left, right = (page.locator(".panel").nth(n).bounding_box() for n in (0, 1))
    assert left and right and left["x"] + left["width"] <= right["x"] and left["y"] == right["y"]
    assert set(rows(page, 0)) == expected_rows(models.animals, TEXT)
    assert set(rows(page, 1)) == expected_rows(models.fewer, TEXT)
    assert rows(page, 0) != rows(page, 1)
    page.select_option("#model", "fewer")
    expect(page.locator(".panel h2")).to_have_text(["fewer"])


def test_opened_and_closed_branches_stay_so(page: Page) -> None:
    page.get_by_role("treeitem", name="Animals").locator(".twisty").first.click()
    expect(page.get_by_role("treeitem")).to_have_count(4)
    classify(page, "leaf root bark")
    expect(page.get_by_role("treeitem", name="Mammals")).to_have_count(1)
    page.get_by_role("treeitem", name="Animals").locator(".twisty").first.click()
    classify(page, "leaf root leaf")
    expect(page.get_by_role("treeitem", name="Mammals")).to_have_count(0)


def test_clearing_the_text_clears_the_scores(page: Page) -> None:
    classify(page, TEXT)
    page.click("#empty")
    expect(page.locator(".tree .score")).to_have_count(0)
    expect(page.locator(".state")).to_contain_text("Paste a text")


def test_an_error_is_shown_and_can_be_retried(page: Page, expected_errors: list[str]) -> None:
    expected_errors += ["status of 504", "ERR_FAILED"]

    def late(route: Route) -> None:
        route.fulfill(status=504, json={"detail": "the request took longer than 30 seconds"})

    page.route("**/v1/predict", late, times=1)
    classify(page, TEXT)
    expect(page.get_by_role("alert")).to_have_text("The request took longer than 30 seconds.")
    page.route("**/v1/predict", lambda route: route.abort(), times=1)
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("alert")).to_contain_text("The server does not respond.")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".paths button")).to_have_count(1)


def test_runners_up_come_before_labels_with_a_score_of_0(page: Page, models: Models) -> None:
    classify(page, TEXT)
    scores = dict(zip(models.animals.taxonomy.ids, models.animals.predict_proba([TEXT])[0], strict=True))
    predicted = models.animals.predict([TEXT])[0]
    rest = sorted((label for label in scores if label not in predicted), key=lambda label: -scores[label])
    shown = page.locator(".next button")
    expect(shown).to_have_count(len([label for label in rest if scores[label] >= 0.005][:3]))
    first = models.animals.taxonomy.path_name(models.animals.taxonomy.row(rest[0]))
    assert shown.first.locator(".names").inner_text().replace("›", " > ").split() == first.split()
    assert shown.first.locator(".score").inner_text() == f"{scores[rest[0]]:.2f}"
    box, tree = page.locator(".next").bounding_box(), page.locator(".tree").bounding_box()
    assert box and tree and box["y"] + box["height"] <= tree["y"]
    shown.first.click()
    expect(page.locator("#why .about")).to_contain_text("not predicted")


def test_siblings_in_the_tree_are_ordered_by_their_scores(page: Page) -> None:
    expect(page.get_by_role("treeitem")).to_have_text(["Animals2", "Plants"])
    classify(page, "leaf root bark")
    page.locator("#threshold").press("End")
    expect(page.locator(".state")).to_contain_text("No label scores above")
    values = [float(value) for value in page.locator(".tree > li > .row .score").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    expect(page.locator(".tree > li > .row .name")).to_have_text(["Plants", "Animals"])


def test_on_a_phone_the_labels_of_a_text_need_no_scrolling(page: Page) -> None:
    page.set_viewport_size({"width": 375, "height": 667})
    classify(page, TEXT)
    assert page.evaluate("scrollY") == 0
    expect(page.locator(".paths button").first).to_be_in_viewport(ratio=1)
    expect(page.locator(".next button").first).to_be_in_viewport(ratio=1)


def test_a_control_that_cannot_be_used_says_why(page: Page) -> None:
    page.select_option("#strategy", "path")
    expect(page.locator("#threshold")).to_be_disabled()
    expect(page.locator("#threshold-value")).to_have_text("not used by the strategy path")
    page.select_option("#strategy", "closure")
    expect(page.locator("#threshold-value")).to_have_text("default of the model")
    expect(page.locator("#threshold")).to_be_enabled()
