//! `vramshim report`: the data of the page, and the page itself in headless Chromium.

pub mod browser;
mod commands;
mod hands;
pub mod job;
mod states;

use std::path::{Path, PathBuf};
use std::process::Command;

use browser::Browser;
use job::{BEGAN_NS, FAILED_NS, HOSTILE, PEAK_NS, REQUESTED, SPIKE};
use serde_json::{Value, json};
use support::{Fields, GIB, Printed, Runs, assert_fields, assert_says, left_out};
use tempfile::TempDir;

/// The panels, in their order.
const PANELS: [&str; 13] = [
    "verdict", "ledger", "trust", "timeline", "holders", "changes", "flame", "space", "ranks", "growth", "replay",
    "events", "about",
];

pub fn vramshim(arguments: &[&str], folder: &Path) -> Printed {
    let mut command = Command::new(support::program());
    command.env_remove("VRAMSHIM_DIR").current_dir(folder);
    command.arg("report").args(arguments).printed()
}

fn data(path: &Path) -> Value {
    vramshim(&[path.to_str().unwrap(), "--json"], Path::new("/"))
        .ok()
        .json()
}

/// The numbers whose differences are in the data.
fn numbers(differences: &Value) -> Vec<i64> {
    let differences = differences.list().iter();
    let sums = differences.scan(0, |sum, difference| {
        *sum += difference.as_i64().expect("a number");
        Some(*sum)
    });
    sums.collect()
}

/// The page of a job, made in a folder of its own.
fn page(folder: &Path, ranks: u32) -> (PathBuf, Vec<job::Truth>) {
    let journals = folder.join("journals");
    std::fs::create_dir(&journals).unwrap();
    let truths = (0..ranks).map(|rank| job::write(&journals, rank).unwrap()).collect();
    let page = folder.join("report.html");
    vramshim(&["journals", "-o", page.to_str().unwrap()], folder).ok();
    (page, truths)
}

/// A browser, or `None` if there is none. `VRAMSHIM_NEED_CHROMIUM` makes that an error.
pub fn browser() -> Option<Browser> {
    let program = browser::chromium();
    if program.is_none() {
        assert!(std::env::var_os("VRAMSHIM_NEED_CHROMIUM").is_none(), "no Chromium");
        left_out("the page in a browser: no Chromium in PATH (VRAMSHIM_CHROMIUM can name one)");
    }
    program.map(|program| Browser::start(&program))
}

/// The page of a job in a browser, if there is one.
fn opened(ranks: u32) -> Option<(Browser, Vec<job::Truth>, TempDir)> {
    let mut browser = browser()?;
    let folder = TempDir::new().unwrap();
    let (page, truths) = page(folder.path(), ranks);
    browser.look(1280, 900, "light");
    browser.open(&page);
    Some((browser, truths, folder))
}

#[test]
fn the_data_has_the_exact_peak_and_who_held_it() {
    let folder = TempDir::new().unwrap();
    let truth = job::write(folder.path(), 0).unwrap();
    let data = data(&truth.path);
    let process = &data["processes"][0];
    let device = &process["devices"][0];
    assert_eq!(process["events"]["in_all"], truth.events);
    assert_fields(device, json!({"peak_bytes": truth.peak, "peak_ns": PEAK_NS}), "");
    let (times, bytes) = (numbers(&device["live"]["times_ns"]), numbers(&device["live"]["bytes"]));
    let place = times.iter().position(|&time| time == PEAK_NS as i64);
    let place = place.expect("the time of the peak");
    assert_eq!(bytes[place] as u64, truth.peak);
    assert_eq!(bytes.iter().max(), Some(&bytes[place]));
    assert!(truth.events > 12_000, "so few events would all be in the data");
    let moments = numbers(&process["holdings"]["moments_ns"]);
    let named = process["holdings"]["named"].list();
    let (peak, at_failure) = (truth.peak, truth.live_at_failure);
    for (kind, time_ns, live) in [("peak", PEAK_NS, peak), ("failure", FAILED_NS, at_failure)] {
        let moment = named.iter().find(|named| named["kind"] == kind).expect(kind);
        let moment = moment["moment"].number() as i64;
        assert_eq!(moments[moment as usize] as u64, time_ns, "{kind}");
        let groups = process["holdings"]["groups"].list();
        let held = groups.iter().map(|group| {
            let known = numbers(&group["moments"]).partition_point(|&changed| changed <= moment);
            let last = known.checked_sub(1);
            last.map_or(0, |place| numbers(&group["bytes"])[place] as u64)
        });
        assert_eq!(held.sum::<u64>(), live, "the groups at the {kind} sum to the ledger");
    }
    let verdict = &process["verdict"];
    let wanted = json!({"name": "cached_but_unusable", "requested": REQUESTED});
    assert_fields(verdict, wanted, "");
    let parts = verdict["parts"].list().iter();
    let parts = parts.map(|part| part["bytes"].as_i64().expect("bytes"));
    assert_eq!(parts.sum::<i64>() as u64, 24 * GIB);
    assert_eq!(process["space"]["largest_free"], SPIKE);
}

#[test]
fn the_page_says_what_why_and_replay_say() {
    let folder = TempDir::new().unwrap();
    job::write(folder.path(), 0).unwrap();
    let process = &data(folder.path())["processes"][0];
    let mut why = Command::new(support::program());
    let why = why.args(["why", "--json"]).arg(folder.path()).printed().json();
    assert!(!why["steps"].list().is_empty(), "{why}");
    assert_eq!(process["verdict"]["next"], why["steps"]);
    let shown = process["replay"].clone();
    let mut command = Command::new(support::program());
    command.args(["replay", "--json", "--device", &shown["device"].to_string()]);
    let replay = command.arg(folder.path()).printed().ok().json();
    assert!(replay["strategies"].list().len() > 4, "{replay}");
    assert_eq!(shown["strategies"].list().len(), replay["strategies"].list().len());
    for figure in ["device_memory", "peak_live", "at_least"] {
        assert_eq!(shown[figure], replay[figure], "{figure}");
    }
    for of_page in shown["strategies"].list() {
        let mut played = replay["strategies"].list().iter();
        let played = played.find(|played| played["name"] == of_page["name"]).unwrap();
        for figure in ["peak_reserved", "driver_ns", "failed", "not_known"] {
            assert_eq!(of_page[figure], played[figure], "{figure} of {played}");
        }
    }
}

#[test]
fn secrets_and_markup_of_the_job_stay_out_of_the_page() {
    let folder = TempDir::new().unwrap();
    let (page, _) = page(folder.path(), 1);
    let html = std::fs::read_to_string(page).unwrap();
    assert!(!html.contains("hunter2"));
    assert_eq!(html.matches("<script").count(), 2, "the data and the scripts");
    assert_eq!(html.matches("</script>").count(), 2);
    assert!(!html.contains("<img"));
    assert!(!html.contains("http:") || html.matches("http:").count() == html.matches("http://www.w3.org/").count());
    assert!(!html.contains("https:"));
}

#[test]
fn the_newest_journals_are_found_and_bad_arguments_refused() {
    let folder = TempDir::new().unwrap();
    assert_eq!(vramshim(&[], folder.path()).code, Some(1));
    for (name, age_s, rank) in [("vramshim-old", 1000, 2), ("vramshim-new", 10, 1)] {
        let journals = folder.path().join(name);
        std::fs::create_dir(&journals).unwrap();
        let path = job::write(&journals, rank).unwrap().path;
        let time = std::time::SystemTime::now() - std::time::Duration::from_secs(age_s);
        let journal = std::fs::File::options().write(true).open(path).unwrap();
        journal.set_modified(time).unwrap();
    }
    assert_eq!(vramshim(&[], folder.path()).ok().text.trim(), "report.html");
    let html = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(html.contains("\"pid\":4712"), "the process of the newer journal");
    std::fs::write(folder.path().join("vramshim-new/bad.vraj"), b"no journal").unwrap();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    for (arguments, code) in [
        // A folder with one journal, and one without.
        (&["vramshim-old", "--against", "vramshim-old"][..], 0),
        (&["vramshim-old", "--against", "."], 1),
        (&["nowhere"], 1),
        // A folder without journals, alone and beside one with journals.
        (&["empty", "-o", "empty.html"], 1),
        (&["empty", "vramshim-old", "-o", "beside.html"], 1),
        // One journal cannot be read, and the other is shown.
        (&["vramshim-new", "-o", "partly.html"], 1),
        (&["vramshim-old", "-o", "nowhere/x.html"], 1),
    ] {
        let told = vramshim(arguments, folder.path());
        assert_eq!(told.code, Some(code), "{arguments:?}: {}", told.said);
        assert!(!told.said.contains(".tmp"), "{}", told.said);
    }
    for (page, is_there) in [("partly.html", true), ("beside.html", true), ("empty.html", false)] {
        assert_eq!(folder.path().join(page).exists(), is_there, "{page}");
    }
}

#[test]
fn a_long_journal_makes_a_small_page() {
    let folder = TempDir::new().unwrap();
    let plan = support::training::Plan {
        events: 300_000,
        out_of_memory: true,
        ..Default::default()
    };
    let truth = support::training::write(&folder.path().join("long.vraj"), &plan).unwrap();
    vramshim(&["long.vraj", "-o", "long.html"], folder.path()).ok();
    let size = std::fs::metadata(folder.path().join("long.html")).unwrap().len();
    assert!(size < 3 << 20, "{size} bytes");
    let data = data(&folder.path().join("long.vraj"));
    let device = &data["processes"][0]["devices"][0];
    assert_fields(device, json!({"peak_bytes": truth.peak, "peak_ns": truth.peak_ns}), "");
    assert!(
        data["processes"][0]["replay"].is_null(),
        "its requests are for `vramshim replay`"
    );
}

#[test]
fn the_first_rank_is_the_one_that_failed_or_that_differs() {
    let folder = TempDir::new().unwrap();
    let paths = [0, 1, 2, 3].map(|rank| job::write(folder.path(), rank).unwrap().path);
    let all = data(folder.path());
    assert_eq!(all["processes"][0]["rank"], "0");
    assert_says(all["first_because"].text(), "out of memory");
    std::fs::remove_file(&paths[0]).unwrap();
    let all = data(folder.path());
    assert_eq!(all["processes"][0]["rank"], "2", "its peak is lower");
    assert_says(all["first_because"].text(), "differs most");
}

/// The state that each panel was drawn for.
fn shown(browser: &mut Browser) -> Vec<String> {
    let panels = serde_json::to_string(&PANELS).unwrap();
    let shown = format!("{panels}.map((name) => document.getElementById(name).dataset.shows)");
    serde_json::from_value(browser.value(&shown)).expect("drawn panels")
}

/// The chosen range and moment; all panels must show it.
fn selection(browser: &mut Browser) -> [f64; 3] {
    let shown = shown(browser);
    assert!(shown.iter().all(|one| *one == shown[0]), "{shown:?}");
    let numbers = shown[0].split(' ').skip(1).map(|number| number.parse().unwrap());
    numbers.collect::<Vec<f64>>().try_into().unwrap()
}

/// Where the chart is: x, y, width and height.
fn chart(browser: &mut Browser) -> [f64; 4] {
    let chart = browser.value(
        "(() => { const { x, y, width, height } = document.querySelector('#timeline canvas').getBoundingClientRect(); \
         return [x, y, width, height]; })()",
    );
    serde_json::from_value(chart).unwrap()
}

/// The place of a share of the chart's time.
fn place([x, y, width, height]: [f64; 4], share: f64) -> (f64, f64) {
    (x + 74.0 + share * (width - 82.0), y + height / 2.0)
}

#[test]
fn the_page_shows_all_panels_and_a_range_moves_them_all() {
    let Some((mut browser, truths, _folder)) = opened(3) else {
        return;
    };
    for panel in PANELS {
        let text = browser.text(&format!("#{panel} .body"));
        assert!(!text.trim().is_empty(), "{panel} is empty");
        let height = browser.value(&format!(
            "document.getElementById('{panel}').getBoundingClientRect().height"
        ));
        assert!(height.as_f64().unwrap() > 40.0, "{panel} is not to be seen");
    }
    // The page begins at the failure.
    assert_eq!(selection(&mut browser)[2], FAILED_NS as f64);
    // The cause comes first.
    let verdict = browser.text("#verdict .body");
    assert!(verdict.starts_with("Free memory that cannot be used"), "{verdict}");
    let holder = "Largest holder in this process: ";
    browser.assert_shows("#verdict", &["6.00 GiB", "Next: ", holder, "model.py:31 forward"]);
    browser.assert_shows("#ledger", &["512.0 MiB", "sum 24.0 GiB", "(99 <b>other</b>)"]);
    browser.assert_shows("#space", &["asked: 6.00 GiB", "9 × 1.00 GiB", "3 × 1.00 GiB"]);
    // Without colours, no mark looks as another does.
    let alike = browser.value(
        "(() => { const shapes = [...document.querySelectorAll('#timeline .sample')].map((one) => one.getContext('2d') \
         .getImageData(0, 0, one.width, one.height).data.map((value, place) => place % 4 === 3 && value > 40).join('')); \
         return shapes.length - new Set(shapes.filter((one) => one.includes('1'))).size; })()",
    );
    assert_eq!(alike, 0);
    browser.assert_shows("#holders", &["model.py:31 forward"]);
    let leaked = format!("+{:.2} GiB", truths[0].leaked as f64 / GIB as f64);
    browser.assert_shows("#growth", &["train.py:88 keep_history", &leaked]);
    // Names of the job are text.
    assert_eq!(browser.value("window.hurt === undefined"), true);
    assert_eq!(browser.value("document.images.length"), 0);
    assert!(browser.text("#title").contains(HOSTILE));

    // A range that is dragged on the chart is that of every panel.
    let moved = ["holders", "changes", "flame", "growth", "events", "ranks", "ledger"];
    let before = moved.map(|panel| browser.text(&format!("#{panel} .body")));
    browser.value("document.querySelector('#timeline canvas').scrollIntoView({block: 'center'})");
    let chart = chart(&mut browser);
    browser.drag(place(chart, 0.2), place(chart, 0.4));
    let [from, to, moment] = selection(&mut browser);
    let whole = (FAILED_NS + 1_000_000) as f64;
    let is_near = |time: f64, share: f64| (time / whole - share).abs() < 0.01;
    assert!(is_near(from, 0.2) && is_near(to, 0.4), "{from} {to}");
    assert!(from <= moment && moment <= to, "the moment lies in the range");
    for (panel, before) in moved.iter().zip(before) {
        assert_ne!(browser.text(&format!("#{panel} .body")), before, "{panel} did not move");
    }

    // Buttons jump to the failure, the peak and the end.
    browser.click("#jump-peak");
    assert_eq!(selection(&mut browser)[2], PEAK_NS as f64);
    let peak = format!("{:.1} GiB live", truths[0].peak as f64 / GIB as f64);
    browser.assert_shows("#holders .asof", &["(peak)", &peak]);
    // The block that made the peak.
    browser.assert_shows("#holders", &["train.py:97 gather"]);
    browser.click("#jump-failure");
    assert_eq!(selection(&mut browser)[2], FAILED_NS as f64);
    browser.click("#jump-last");
    let [from, to, _] = selection(&mut browser);
    assert_eq!((to, to - from), (whole, 10e9));
    browser.click("#jump-end");
    assert_eq!(selection(&mut browser)[2], whole);
    browser.click("#jump-all");
    let [from, to, _] = selection(&mut browser);
    assert_eq!((from, to), (BEGAN_NS as f64, whole));
    let scale =
        ["chart", "overview"].map(|one| browser.value(&format!("document.querySelector('.{one}').dataset.scale")));
    assert_eq!(scale[0], scale[1]);

    // Keys move the moment, and every panel with it.
    browser.value("document.querySelector('#timeline canvas').focus()");
    browser.press("Home");
    assert_eq!(selection(&mut browser)[2], BEGAN_NS as f64);
    browser.press("ArrowRight");
    assert!(selection(&mut browser)[2] > BEGAN_NS as f64);

    // Another rank: of those that did not fail, rank 2 differs most.
    browser.click("#ranks li:nth-child(2) button");
    assert!(shown(&mut browser)[0].starts_with("4713 "));
    browser.assert_shows(
        "#verdict",
        &["BUT GREW", "Rose steadily: ", "a second: train.py:88 keep_history"],
    );
}

#[test]
fn the_peak_is_drawn_at_every_zoom() {
    let Some((mut browser, truths, _folder)) = opened(1) else {
        return;
    };
    browser.click("#jump-peak");
    browser.click("#jump-all");
    browser.value("document.querySelector('#timeline canvas').focus()");
    const TOP: &str = include_str!("top.js");
    let mut range = f64::INFINITY;
    let mut zooms = 0;
    loop {
        let [from, to, _] = selection(&mut browser);
        if to - from >= range {
            break;
        }
        range = to - from;
        zooms += 1;
        let chart = browser.value("({ ...document.querySelector('#timeline canvas').dataset })");
        let peak = truths[0].peak.to_string();
        assert_eq!(chart["highest"], peak.as_str(), "{from} to {to}");
        assert_eq!(chart["highestAt"], PEAK_NS.to_string().as_str());
        assert_eq!(chart["columns"], peak.as_str());
        let drawn = browser.value(TOP).as_f64().unwrap();
        let pixel = chart["scale"].text().parse::<f64>().unwrap() / 258.0;
        let is_drawn = (drawn - truths[0].peak as f64).abs() < 3.0 * pixel;
        assert!(is_drawn, "{drawn} is drawn from {from} to {to}");
        browser.press("+");
    }
    assert!(zooms > 15, "{zooms} zooms");
}

/// What a reader with a screen reader, a keyboard or weak eyes would miss.
const AUDIT: &str = include_str!("audit.js");

#[test]
fn the_page_can_be_read_in_both_themes_at_any_width_and_on_paper() {
    let Some(mut browser) = browser() else { return };
    let folder = TempDir::new().unwrap();
    let (page, _) = page(folder.path(), 3);
    for scheme in ["light", "dark"] {
        for (device, width, height) in [("laptop", 1280, 900), ("phone", 390, 844)] {
            browser.look(width, height, scheme);
            browser.open(&page);
            browser.value("document.querySelectorAll('details').forEach((part) => (part.open = true))");
            browser.settle();
            let missing = browser.value(AUDIT);
            assert_eq!(missing, json!([]), "{scheme} on a {device}: {missing:#}");
            let top = browser.value("document.querySelector('.sentence').offsetTop");
            assert_eq!(top.number() > 30, device == "phone", "below the tag on a phone: {top}");
        }
    }
    // The button changes what the system prefers.
    browser.look(1280, 900, "dark");
    browser.open(&page);
    let ground = "getComputedStyle(document.body).backgroundColor";
    let dark = browser.value(ground);
    browser.click("#theme");
    assert_ne!(browser.value(ground), dark);
    let paper = browser.ask("Page.printToPDF", json!({"printBackground": true}));
    let paper = paper["data"].text();
    assert!(paper.starts_with("JVBERi") && paper.len() > 26_000, "%PDF in base64");
    let pages = browser.value(&format!(r"atob('{paper}').match(/\/Type\s*\/Page\b/g).length"));
    assert!((1..=4).contains(&pages.number()), "{pages} pages");
}
