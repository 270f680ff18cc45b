//! What the pointer, fingers and keys do on the page.

use super::*;
use support::{MIB, made::Made};

#[test]
fn the_first_screen_has_the_answer_and_the_pointer_reads_the_chart() {
    let Some((mut browser, ..)) = opened(1) else { return };
    browser.look(1440, 900, "light");
    assert_eq!(browser.text("#verdict-title").to_uppercase(), "FRAGMENTED");
    let chart = chart(&mut browser);
    let bottom = chart[1] + chart[3];
    assert!(bottom < 900.0, "the chart ends at {bottom}");
    // One process has no ranks to compare.
    assert_eq!(browser.value("document.getElementById('ranks').hidden"), true);
    let before = selection(&mut browser);
    // The middle of a step: the weights, the leak and the blocks of the step are live.
    let (x, y) = place(chart, (PEAK_NS as f64 - before[0]) / (before[1] - before[0]));
    let moved = json!({"type": "mouseMoved", "x": x, "y": y});
    browser.ask("Input.dispatchMouseEvent", moved);
    browser.assert_shows(
        ".tip",
        &["live ", "reserved ", "cached ", "allocation", "largest first"],
    );
    browser.drag(place(chart, 0.2), place(chart, 0.4));
    let [from, to, _] = selection(&mut browser);
    assert!(from > before[0] && to < before[1]);
    browser.press("Escape");
    assert_eq!(selection(&mut browser)[..2], before[..2], "Escape goes back");
}

#[test]
fn fingers_read_and_choose_what_the_pointer_does() {
    let Some((mut browser, ..)) = opened(1) else { return };
    browser.look(390, 844, "light");
    browser.value("document.querySelector('#timeline canvas').scrollIntoView({block: 'center'})");
    let chart = chart(&mut browser);
    let [a, b, c, d, e] = [0.3, 0.4, 0.5, 0.55, 0.6].map(|share| place(chart, share));
    let all = selection(&mut browser);
    let shares = |range: [f64; 3]| range.map(|time| ((time - all[0]) / (all[1] - all[0]) * 20.0).round());
    browser.touch(&[&[c]]);
    assert_eq!(shares(selection(&mut browser)), [0.0, 20.0, 10.0]);
    browser.assert_shows(".tip", &["live ", "reserved "]);
    // A finger that moves sideways, and two that part, choose a range; two taps go back.
    for fingers in [[&[a][..], &[b], &[e]], [&[b][..], &[b, d], &[a, e]]] {
        browser.touch(&fingers);
        assert_eq!(shares(selection(&mut browser))[..2], [6.0, 12.0]);
        (0..2).for_each(|_| browser.touch(&[&[c]]));
        assert_eq!(selection(&mut browser)[..2], all[..2], "two taps go back");
    }
}

#[test]
fn the_first_range_of_a_leak_is_the_one_that_the_verdict_names() {
    let folder = TempDir::new().unwrap();
    let mut made = Made::new(folder.path(), 71, 0).unwrap();
    for _ in 0..500 {
        made.alloc(0, MIB, 1).unwrap();
        let block = made.alloc(0, MIB, 2).unwrap();
        made.free(0, block, MIB).unwrap();
    }
    crate::deaths::evidence::measure(&mut made, GIB / 2, 500 * MIB, 500 * MIB);
    made.fail(600 * MIB).unwrap();
    let journal = made.end(Some(1)).unwrap();
    let verdict = data(&journal)["processes"][0]["verdict"].clone();
    assert_eq!(verdict["name"], "growth", "{verdict}");
    let Some(mut browser) = browser() else { return };
    vramshim(&[journal.to_str().unwrap(), "-o", "leak.html"], folder.path()).ok();
    browser.open(&folder.path().join("leak.html"));
    let from = selection(&mut browser)[0];
    assert_eq!(from, verdict["window"]["from_ns"].number() as f64);
    assert_eq!(browser.value("document.getElementById('growth').hidden"), false);
}

#[test]
fn the_keyboard_reaches_everything() {
    let Some((mut browser, ..)) = opened(3) else { return };
    let mut panels = Vec::new();
    for _ in 0..400 {
        browser.press("Tab");
        let focused = "document.activeElement";
        let panel = format!("{focused}.closest('section, header, #selection')?.id ?? {focused}.className");
        let panel = browser.value(&panel).as_str().unwrap_or_default().to_owned();
        if panels.last() != Some(&panel) {
            panels.push(panel);
        }
        if browser.value("document.activeElement === document.body") == true {
            break;
        }
    }
    let place = |wanted: &str| {
        let place = panels.iter().position(|panel| panel == wanted);
        place.unwrap_or_else(|| panic!("{wanted} is not in {panels:?}"))
    };
    let _ = ["skip", "verdict", "changes"].map(place);
    let places = ["timeline", "selection", "holders", "flame", "ranks", "events", "about"].map(place);
    assert!(places.is_sorted(), "the order of {panels:?}");
    // The bars of the flame graph are one stop; arrows lead from bar to bar.
    browser.value("document.querySelector('.flame g').focus()");
    browser.press("ArrowDown");
    assert_eq!(browser.value("document.activeElement.getAttribute('aria-level')"), "2");
    browser.press("Enter");
    assert!(browser.text("#flame .path").contains("all"));
    browser.press("Escape");
    let path = browser.value("document.querySelector('#flame .path').childElementCount");
    assert_eq!(path, 0);
}
