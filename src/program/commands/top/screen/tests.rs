use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::devices::sample;
use super::*;

fn screen(processes: u32) -> Screen {
    let mut screen = Screen::new();
    screen.rows = (0..processes)
        .map(|number| rows::sample(number, Some(u64::from(number) << 20)))
        .collect();
    screen.devices = (0..processes.min(12)).map(|_| sample()).collect();
    screen
}

fn drawn(screen: &mut Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn what_falls_off_is_said() {
    let mut screen = screen(15);
    screen.events = (0..900).map(|number| (format!("mark {number}"), false)).collect();
    screen
        .events
        .splice(0..0, (0..3).map(|number| (format!("failure {number}"), true)));
    let text = drawn(&mut screen, 80, 24);
    for words in [
        "5 more devices: --once shows all",
        "8 more rows",
        "failure 2",
        "mark 899",
        ": 3 of 903, e shows all",
        "/ filter",
    ] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    assert!(text.contains("/ filter e events"), "{text}");
    let text = drawn(&mut screen, 200, 50);
    for words in ["0 Simulated GPU", "GPU-5", "4711", "4725", "failure 0", "mark 896"] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    assert!(!text.contains(" more "), "{text}");
}

#[test]
fn every_size_can_be_drawn() {
    for processes in [0, 1, 40] {
        let mut screen = screen(processes);
        screen.events = (0..50)
            .map(|line| (format!("line {line} \u{4e16}\u{754c}"), false))
            .collect();
        for shows_events in [false, true] {
            screen.shows_events = shows_events;
            screen.note = "a note".to_owned();
            for height in (1..12).chain([24, 100]) {
                for width in (1..60).chain([80, 132, 400]) {
                    drawn(&mut screen, width, height);
                }
            }
        }
    }
}

#[test]
fn what_matters_most_stays_where_there_is_little_room() {
    let wide = drawn(&mut screen(3), 200, 24);
    for column in COLUMNS.iter().chain(&devices::COLUMNS) {
        assert!(wide.contains(column.title), "{} in\n{wide}", column.title);
    }
    let narrow = drawn(&mut screen(3), 80, 24);
    for text in [
        "pid", "job", "live", "cached", "nvml", "others", "free", "*gpu", "busy", "failed", "state", "4713",
    ] {
        assert!(narrow.contains(text), "{text} in\n{narrow}");
    }
    assert!(!narrow.contains("GPU-5"), "{narrow}");
    assert!(narrow.contains("no room: ") && narrow.contains("strategy"), "{narrow}");
    // The column by which the table is sorted is never left out.
    let mut by_host = screen(3);
    by_host.sort = COLUMNS.iter().position(|column| column.title == "host").unwrap();
    let narrow = drawn(&mut by_host, 60, 24);
    assert!(narrow.contains("*host"), "{narrow}");
}

#[test]
fn rows_and_events_are_scrolled_to_their_ends() {
    let machine = Machine::default();
    let mut screen = screen(40);
    screen.press(KeyCode::End, &machine);
    let text = drawn(&mut screen, 100, 24);
    assert!(text.contains("  4750 ") && !text.contains("  4711 "), "{text}");
    screen.press(KeyCode::Home, &machine);
    screen.press(KeyCode::Down, &machine);
    let text = drawn(&mut screen, 100, 24);
    assert!(text.contains("  4712 ") && !text.contains("  4711 "), "{text}");
}
