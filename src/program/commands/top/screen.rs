//! Draws the screen of `top`: the devices, the table of processes and the latest events, or one opened process. Also keeps
//! what the user chose with the keys.

use std::io::Write;

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState};

use super::columns::{Column, fitting, pick, width};
use super::devices::{self, DeviceRow};
use super::events;
use super::machine::Machine;
use super::rows::{self, COLUMNS, Row};
use crate::analysis::job::Job;
use crate::analysis::running::FileId;
use crate::render::format::{printable, styled};
use crate::render::job_page::JobPage;

/// Entries to show of each list of an opened process.
const ENTRIES: usize = 20;
/// The page of a process with a longer journal, in bytes, is not made again.
const LONGEST_READ_AGAIN: u64 = 32 << 20;
/// The most lines that the table of devices takes, including the titles.
const DEVICE_LINES: u16 = 9;

/// The most events that are shown, and the lines of the screen from which on there is room for them.
const EVENT_LINES: u16 = 5;
const ROOM_FOR_EVENTS: u16 = 14;

const HELP: &str = "q quit  \u{2191}\u{2193} choose  Enter open  \u{2190}\u{2192} sort by  r reverse";
const HELP_OPEN: &str = "q quit  Esc back  \u{2191}\u{2193} PgUp PgDn scroll";

/// The state of the screen.
pub struct Screen {
    /// The column that the rows are sorted by, as its place in `COLUMNS`.
    sort: usize,
    reversed: bool,
    /// The chosen row: its process and its device.
    chosen: Option<(FileId, Option<i16>)>,
    opened: Option<FileId>,
    scroll: usize,
    /// Height of the lower part in lines; known after the first drawing.
    page: usize,
    colours: bool,
    rows: Vec<Row>,
    devices: Vec<DeviceRow>,
    /// The lines of the opened process's page.
    text: Vec<String>,
    /// How many bytes of the journal that page shows.
    shown: u64,
    /// The latest events as text, the latest last, and whether each is a failure.
    events: Vec<(String, bool)>,
    note: String,
    state: TableState,
}

impl Screen {
    pub fn new() -> Screen {
        Screen {
            sort: rows::RESERVED,
            reversed: false,
            chosen: None,
            opened: None,
            scroll: 0,
            page: 1,
            colours: styled(),
            rows: Vec::new(),
            devices: Vec::new(),
            text: Vec::new(),
            shown: 0,
            events: Vec::new(),
            note: String::new(),
            state: TableState::default(),
        }
    }

    /// Takes the present figures over from `machine`.
    pub fn refresh(&mut self, machine: &Machine) {
        self.rows = rows::all(machine);
        rows::sort(&mut self.rows, self.sort, self.reversed);
        self.devices = devices::devices(machine);
        let latest = machine.events().rev().take(usize::from(EVENT_LINES));
        self.events = latest
            .map(|event| (events::line(event), events::is_failure(event)))
            .collect();
        self.events.reverse();
        self.note = match (machine.problems().next(), self.rows.is_empty()) {
            (Some(problem), _) => problem.to_owned(),
            (None, true) => machine.nothing_to_show(),
            (None, false) => {
                let problem = devices::problem(machine).or_else(|| devices::layer(machine));
                problem.unwrap_or_default()
            }
        };
        self.open(machine);
    }

    /// Makes the page of the opened process. If `machine` no longer has that process, the screen returns to the tables.
    fn open(&mut self, machine: &Machine) {
        let Some(watched) = self.opened.and_then(|id| machine.process(id)) else {
            self.opened = None;
            return;
        };
        let (read, size) = watched.progress();
        // The whole journal is read again, unless nothing is new. A long one is shown as it was first.
        if !self.text.is_empty() && (self.shown == read || size > LONGEST_READ_AGAIN) {
            return;
        }
        self.shown = read;
        self.text.clear();
        let page = JobPage {
            top: ENTRIES,
            bold: false,
        };
        let mut text = Vec::new();
        // Writing to memory cannot fail.
        let _ = match Job::load(&watched.path, |_, _| {}) {
            Ok(job) => page.job(&mut text, &job),
            Err(error) => writeln!(text, "{error}"),
        };
        self.text
            .extend(String::from_utf8_lossy(&text).lines().map(str::to_owned));
    }

    /// The index of the chosen row. If the row is gone, the process's first row is taken, or else the row at the same
    /// index.
    fn place(&self) -> usize {
        let chosen = self.chosen.and_then(|(id, device)| {
            let same = |row: &Row| row.id == id && row.device == device;
            let rows = &self.rows;
            let exact = rows.iter().position(same);
            exact.or_else(|| rows.iter().position(|row| row.id == id))
        });
        let place = chosen.or(self.state.selected()).unwrap_or(0);
        place.min(self.rows.len().saturating_sub(1))
    }

    fn choose(&mut self, place: usize) {
        let place = place.min(self.rows.len().saturating_sub(1));
        self.chosen = self.rows.get(place).map(|row| (row.id, row.device));
    }

    /// Does what a key asks for.
    pub fn press(&mut self, key: KeyCode, machine: &Machine) {
        match (key, self.opened) {
            (KeyCode::Esc | KeyCode::Backspace, _) => self.opened = None,
            (_, Some(_)) => self.scroll = moved(key, self.scroll, self.page).unwrap_or(self.scroll),
            (KeyCode::Left | KeyCode::Char('<'), None) => self.sort_by_next(COLUMNS.len() - 1),
            (KeyCode::Right | KeyCode::Char('>'), None) => self.sort_by_next(1),
            (KeyCode::Char('r'), None) => {
                self.reversed = !self.reversed;
                rows::sort(&mut self.rows, self.sort, self.reversed);
            }
            (KeyCode::Enter, None) => {
                self.choose(self.place());
                self.opened = self.chosen.map(|(id, _)| id);
                self.text.clear();
                self.scroll = 0;
                self.open(machine);
            }
            (_, None) => {
                if let Some(place) = moved(key, self.place(), self.page) {
                    self.choose(place);
                }
            }
        }
    }

    fn sort_by_next(&mut self, step: usize) {
        self.sort = (self.sort + step) % COLUMNS.len();
        self.reversed = false;
        rows::sort(&mut self.rows, self.sort, false);
    }

    fn style(&self, modifier: Modifier) -> Style {
        if self.colours {
            Style::new().add_modifier(modifier)
        } else {
            Style::new()
        }
    }

    fn colour(&self, colour: Color) -> Style {
        if self.colours {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    pub fn draw(&mut self, frame: &mut Frame) {
        let is_list = self.opened.is_none();
        // The page of an opened process has the devices of the process.
        let devices = if is_list && !self.devices.is_empty() {
            (self.devices.len() as u16).saturating_add(2).min(DEVICE_LINES + 1)
        } else {
            0
        };
        let events = if is_list && !self.events.is_empty() && frame.area().height >= ROOM_FOR_EVENTS {
            self.events.len() as u16 + 1
        } else {
            0
        };
        let note = u16::from(!self.note.is_empty());
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Max(devices),
            Constraint::Min(1),
            Constraint::Length(events),
            Constraint::Length(note),
            Constraint::Length(1),
        ])
        .split(frame.area());
        let title = self.title();
        frame.render_widget(
            Paragraph::new(Line::styled(title, self.style(Modifier::BOLD))),
            areas[0],
        );
        self.draw_devices(frame, areas[1]);
        self.page = usize::from(areas[2].height.saturating_sub(1).max(1));
        if is_list {
            self.draw_processes(frame, areas[2]);
        } else {
            self.draw_opened(frame, areas[2]);
        }
        self.draw_events(frame, areas[3]);
        frame.render_widget(Paragraph::new(self.note.as_str()), areas[4]);
        let help = if is_list { HELP } else { HELP_OPEN };
        frame.render_widget(Paragraph::new(Line::styled(help, self.style(Modifier::DIM))), areas[5]);
    }

    fn draw_events(&self, frame: &mut Frame, area: Rect) {
        let title = Line::styled("Latest failures and marks (UTC)", self.style(Modifier::BOLD));
        let lines = self.events.iter().map(|(text, is_failure)| {
            let style = if *is_failure {
                self.colour(Color::Red)
            } else {
                Style::new()
            };
            Line::styled(text.as_str(), style)
        });
        frame.render_widget(
            Paragraph::new([title].into_iter().chain(lines).collect::<Vec<_>>()),
            area,
        );
    }

    fn title(&self) -> String {
        let mut ids: Vec<FileId> = self.rows.iter().map(|row| row.id).collect();
        ids.sort_unstable();
        ids.dedup();
        let number = |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
        let mut title = format!(
            "vramshim top  {}  {}  by {}",
            number(ids.len(), "process", "processes"),
            number(self.devices.len(), "device", "devices"),
            COLUMNS[self.sort].title
        );
        if self.reversed {
            title.push_str(", reversed");
        }
        title
    }

    fn draw_devices(&self, frame: &mut Frame, area: Rect) {
        let shown = self.devices.iter().take(usize::from(DEVICE_LINES - 1));
        let texts: Vec<Vec<String>> = shown.map(DeviceRow::texts).collect();
        let titles: Vec<String> = devices::COLUMNS.iter().map(|column| column.title.to_owned()).collect();
        let kept = fitting(&devices::COLUMNS, &titles, &texts, usize::from(area.width), None);
        let styles = vec![Style::new(); texts.len()];
        frame.render_widget(self.table(&devices::COLUMNS, &titles, texts, &kept, &styles), area);
    }

    fn draw_processes(&mut self, frame: &mut Frame, area: Rect) {
        if self.rows.is_empty() {
            return;
        }
        let mut titles: Vec<String> = COLUMNS.iter().map(|column| column.title.to_owned()).collect();
        titles[self.sort].insert(0, if self.reversed { '^' } else { '*' });
        let texts: Vec<Vec<String>> = self.rows.iter().map(Row::texts).collect();
        // The mark of the chosen row takes two characters.
        let room = usize::from(area.width).saturating_sub(2);
        let kept = fitting(&COLUMNS, &titles, &texts, room, Some(self.sort));
        let place = self.place();
        self.choose(place);
        self.state.select(Some(place));
        let styles: Vec<Style> = (self.rows.iter())
            .map(|row| {
                if row.has_failed {
                    self.colour(Color::Red)
                } else if row.is_read {
                    Style::new()
                } else {
                    self.style(Modifier::DIM)
                }
            })
            .collect();
        let table = self.table(&COLUMNS, &titles, texts, &kept, &styles);
        let table = table
            .highlight_symbol("> ")
            .row_highlight_style(self.style(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.state);
    }

    fn table<'a>(
        &self,
        columns: &[Column],
        titles: &[String],
        mut texts: Vec<Vec<String>>,
        kept: &[usize],
        styles: &[Style],
    ) -> Table<'a> {
        let widths: Vec<u16> = kept.iter().map(|&place| width(titles, &texts, place) as u16).collect();
        let row = |texts: Vec<String>| {
            let cells = texts.into_iter().zip(kept).map(|(text, &place)| {
                let line = Line::from(text);
                let line = if columns[place].is_number {
                    line.right_aligned()
                } else {
                    line
                };
                Cell::from(line)
            });
            TableRow::new(cells.collect::<Vec<_>>())
        };
        texts.iter_mut().for_each(|row| pick(row, kept));
        let header = kept.iter().map(|&place| titles[place].clone()).collect();
        let rows = texts
            .into_iter()
            .zip(styles)
            .map(|(texts, style)| row(texts).style(*style));
        Table::new(rows.collect::<Vec<_>>(), widths)
            .header(row(header).style(self.style(Modifier::BOLD)))
            .column_spacing(2)
    }

    fn draw_opened(&mut self, frame: &mut Frame, area: Rect) {
        let height = usize::from(area.height);
        self.scroll = self.scroll.min(self.text.len().saturating_sub(height));
        let text = self.text.iter().skip(self.scroll).take(height);
        let lines: Vec<Line> = text.map(|line| Line::from(printable(line, 1000))).collect();
        frame.render_widget(Paragraph::new(lines), area);
    }
}

/// Where a key leads from `place`: a line or `page` lines on, or to an end.
fn moved(key: KeyCode, place: usize, page: usize) -> Option<usize> {
    Some(match key {
        KeyCode::Up | KeyCode::Char('k') => place.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => place.saturating_add(1),
        KeyCode::PageUp => place.saturating_sub(page),
        KeyCode::PageDown => place.saturating_add(page),
        KeyCode::Home => 0,
        KeyCode::End => usize::MAX,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
