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
fn every_size_can_be_drawn() {
    for processes in [0, 1, 40] {
        let mut screen = screen(processes);
        for opened in [None, Some((1, 0))] {
            screen.opened = opened;
            screen.text = (0..50).map(|line| format!("line {line} \u{4e16}\u{754c}")).collect();
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
        "pid",
        "job",
        "live",
        "*reserved",
        "busy",
        "failures",
        "state",
        "4713",
        "2.00 MiB",
    ] {
        assert!(narrow.contains(text), "{text} in\n{narrow}");
    }
    assert!(!narrow.contains("strategy") && !narrow.contains("GPU-"), "{narrow}");
    // The column by which the table is sorted is never left out.
    let mut by_host = screen(3);
    by_host.sort = COLUMNS.iter().position(|column| column.title == "host").unwrap();
    let narrow = drawn(&mut by_host, 60, 24);
    assert!(narrow.contains("*host"), "{narrow}");
}

#[test]
fn the_chosen_process_is_in_sight_and_stays_chosen() {
    let machine = Machine::default();
    let mut screen = screen(40);
    screen.press(KeyCode::End, &machine);
    let text = drawn(&mut screen, 100, 24);
    assert!(text.contains("> 4750"), "{text}");
    screen.press(KeyCode::Char('r'), &machine);
    rows::sort(&mut screen.rows, rows::PID, false);
    let text = drawn(&mut screen, 100, 24);
    assert!(text.contains("> 4750"), "{text}");
    screen.press(KeyCode::Home, &machine);
    screen.press(KeyCode::Down, &machine);
    let text = drawn(&mut screen, 100, 24);
    assert!(text.contains("> 4712"), "{text}");
    // The chosen process ends, and the next row is chosen.
    screen.rows.retain(|row| row.id != (1, 1));
    let text = drawn(&mut screen, 100, 24);
    assert!(text.contains("> 4713"), "{text}");
}
