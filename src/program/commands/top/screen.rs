//! Draws the screen of `top`: the devices, the table of processes and the latest events, or one opened page. Also keeps
//! what the user chose with the keys.

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Wrap};

use super::devices::{self, DeviceRow};
use super::events;
use super::machine::Machine;
use super::rows::{self, COLUMNS, Row};
use crate::analysis::running::FileId;
use crate::render::format::{many, printable, styled};
use crate::render::table::lay_out;

/// The lines of the screen from which on there is room for events.
const ROOM_FOR_EVENTS: u16 = 14;

const HELP: &str = "q quit \u{2191}\u{2193} PgUp PgDn scroll \u{2190}\u{2192} sort r reverse / filter e events";
const HELP_EVENTS: &str = "q quit  Esc back  \u{2191}\u{2193} PgUp PgDn scroll";
const HELP_FILTER: &str = "Type what a process must have in a column; Enter keeps it, Esc shows all processes";

#[derive(Default)]
pub struct Screen {
    /// The column that the rows are sorted by, as its place in `COLUMNS`.
    sort: usize,
    reversed: bool,
    /// Whether all events take the place of the tables.
    shows_events: bool,
    /// The first row, or event, that is in sight.
    first: usize,
    /// Height of the lower part in lines; known after the first drawing.
    page: usize,
    colours: bool,
    /// What the rows must have in a cell, and whether the user types it now.
    filter: String,
    typing: bool,
    rows: Vec<Row>,
    /// The rows with those that the filter leaves out.
    all: usize,
    devices: Vec<DeviceRow>,
    /// The latest events as text, and whether each is a failure.
    events: Vec<(String, bool)>,
    note: String,
}

impl Screen {
    pub fn new() -> Screen {
        Screen {
            sort: rows::GPU,
            page: 1,
            colours: styled(),
            ..Screen::default()
        }
    }

    /// Whether letters are for the filter.
    pub fn is_typing(&self) -> bool {
        self.typing
    }

    pub fn refresh(&mut self, machine: &Machine) {
        self.rows = rows::all(machine);
        self.all = self.rows.len();
        self.rows.retain(|row| row.has(&self.filter));
        rows::sort(&mut self.rows, self.sort, self.reversed);
        self.devices = devices::devices(machine);
        self.events = events::lines(machine.events());
        self.note = match (machine.problems().next(), self.all == 0) {
            (Some(problem), _) => problem.to_owned(),
            (None, true) => machine.nothing_to_show(),
            (None, false) => {
                let problem = devices::problem(machine).or_else(|| devices::layer(machine));
                problem.unwrap_or_default()
            }
        };
    }

    pub fn press(&mut self, key: KeyCode, machine: &Machine) {
        match key {
            key if self.typing => {
                match key {
                    KeyCode::Char(letter) => self.filter.push(letter),
                    KeyCode::Backspace => drop(self.filter.pop()),
                    KeyCode::Esc => self.filter.clear(),
                    _ => {}
                }
                self.typing = !matches!(key, KeyCode::Enter | KeyCode::Esc);
                self.refresh(machine);
            }
            KeyCode::Esc | KeyCode::Backspace if self.shows_events => (self.shows_events, self.first) = (false, 0),
            KeyCode::Char('e') => (self.shows_events, self.first) = (true, 0),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Esc => {
                self.filter.clear();
                self.refresh(machine);
            }
            KeyCode::Left | KeyCode::Char('<') => self.sort_by_next(COLUMNS.len() - 1),
            KeyCode::Right | KeyCode::Char('>') => self.sort_by_next(1),
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                rows::sort(&mut self.rows, self.sort, self.reversed);
            }
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first = self.first.saturating_add(1),
            KeyCode::PageUp => self.first = self.first.saturating_sub(self.page),
            KeyCode::PageDown => self.first = self.first.saturating_add(self.page),
            KeyCode::Home => self.first = 0,
            KeyCode::End => self.first = usize::MAX,
            _ => {}
        }
    }

    fn sort_by_next(&mut self, step: usize) {
        self.sort = (self.sort + step) % COLUMNS.len();
        self.reversed = false;
        rows::sort(&mut self.rows, self.sort, false);
    }

    fn style(&self, modifier: Modifier) -> Style {
        let shown = if self.colours { modifier } else { Modifier::empty() };
        Style::new().add_modifier(shown)
    }

    fn red(&self, is_failure: bool) -> Style {
        let fg = (self.colours && is_failure).then_some(Color::Red);
        Style { fg, ..Style::new() }
    }

    pub fn draw(&mut self, frame: &mut Frame) {
        let is_list = !self.shows_events;
        let height = frame.area().height;
        let devices = match u16::try_from(self.devices.len()).unwrap_or(u16::MAX) {
            count @ 1.. if is_list => count.saturating_add(1).min((height * 2 / 5).max(3)),
            _ => 0,
        };
        let has_events = is_list && !self.events.is_empty() && height >= ROOM_FOR_EVENTS;
        let events = has_events.then(|| (self.events.len() + 1).min(usize::from(height / 6)) as u16);
        let note = u16::from(!self.note.is_empty());
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Max(devices),
            Constraint::Min(1),
            Constraint::Length(events.unwrap_or(0)),
            Constraint::Length(note),
            Constraint::Length(1),
        ])
        .split(frame.area());
        let bold = self.style(Modifier::BOLD);
        frame.render_widget(Paragraph::new(Line::styled(self.title(), bold)), areas[0]);
        self.draw_devices(frame, areas[1]);
        self.page = usize::from(areas[2].height.saturating_sub(1).max(1));
        if is_list {
            self.draw_processes(frame, areas[2]);
        } else {
            self.draw_all_events(frame, areas[2]);
        }
        self.draw_events(frame, areas[3]);
        frame.render_widget(Paragraph::new(self.note.as_str()), areas[4]);
        let help = match (self.typing, is_list) {
            (true, _) => HELP_FILTER,
            (false, true) => HELP,
            (false, false) => HELP_EVENTS,
        };
        frame.render_widget(Paragraph::new(Line::styled(help, self.style(Modifier::DIM))), areas[5]);
    }

    fn draw_events(&self, frame: &mut Frame, area: Rect) {
        let latest = events::latest(&self.events, usize::from(area.height.saturating_sub(1)));
        let mut lines: Vec<Line> = latest
            .map(|(text, is_failure)| Line::styled(text.as_str(), self.red(*is_failure)))
            .collect();
        let mut title = "Latest failures and marks (UTC)".to_owned();
        if lines.len() < self.events.len() {
            title += &format!(": {} of {}, e shows all", lines.len(), self.events.len());
        }
        lines.insert(0, Line::styled(title, self.style(Modifier::BOLD)));
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn title(&self) -> String {
        if self.shows_events {
            let events = self.events.len();
            return format!("vramshim top  {events} failures and marks, failures first (UTC)");
        }
        let mut ids: Vec<FileId> = self.rows.iter().map(|row| row.id).collect();
        ids.sort_unstable();
        ids.dedup();
        let processes = match ids.len() {
            1 => "1 process".to_owned(),
            count => format!("{count} processes"),
        };
        let (devices, by) = (many(self.devices.len() as u64, "device"), COLUMNS[self.sort].title);
        let mut title = format!("vramshim top  {processes}  {devices}  by {by}");
        if self.reversed {
            title.push_str(", reversed");
        }
        if self.typing || !self.filter.is_empty() {
            let (filter, hidden) = (printable(&self.filter, 30), self.all - self.rows.len().min(self.all));
            title += &format!("  with \"{filter}\" in a column, {hidden} hidden");
        }
        title
    }

    fn draw_devices(&mut self, frame: &mut Frame, area: Rect) {
        let (lines, count) = (usize::from(area.height), self.devices.len());
        // If they do not all fit, a line says so.
        let shown = if count < lines { count } else { lines.saturating_sub(2) };
        let (texts, room) = (devices::texts(&self.devices), usize::from(area.width));
        let laid = lay_out(&devices::COLUMNS, &texts, room, None);
        let mut text = vec![Line::styled(laid.header, self.style(Modifier::BOLD))];
        text.extend(laid.rows.into_iter().take(shown).map(Line::from));
        text.push(Line::from(format!("{} more devices: --once shows all", count - shown)));
        frame.render_widget(Paragraph::new(text), area);
    }

    fn draw_processes(&mut self, frame: &mut Frame, area: Rect) {
        if self.rows.is_empty() {
            return;
        }
        let texts: Vec<Vec<String>> = self.rows.iter().map(Row::texts).collect();
        let room = usize::from(area.width);
        let mark = if self.reversed { '^' } else { '*' };
        let laid = lay_out(&COLUMNS, &texts, room, Some((self.sort, mark)));
        let (lines, count) = (usize::from(area.height), self.rows.len());
        let falls_off = count >= lines || !laid.left_out.is_empty();
        self.page = lines.saturating_sub(1 + usize::from(falls_off)).max(1);
        self.first = self.first.min(count.saturating_sub(self.page));
        let mut text = vec![Line::styled(laid.header, self.style(Modifier::BOLD))];
        let rows = self.rows.iter().zip(laid.rows).skip(self.first).take(self.page);
        text.extend(rows.map(|(row, line)| match row.is_read {
            true => Line::styled(line, self.red(row.has_failed)),
            false => Line::styled(line, self.style(Modifier::DIM)),
        }));
        let hidden = (count > self.page).then(|| format!("{} more rows \u{2191}\u{2193} PgDn", count - self.page));
        let no_room = (!laid.left_out.is_empty()).then(|| format!("no room: {}", laid.left_out.join(" ")));
        let said: Vec<String> = hidden.into_iter().chain(no_room).collect();
        text.push(Line::styled(said.join("; "), self.style(Modifier::DIM)));
        frame.render_widget(Paragraph::new(text), area);
    }

    fn draw_all_events(&mut self, frame: &mut Frame, area: Rect) {
        let height = usize::from(area.height);
        self.first = self.first.min(self.events.len().saturating_sub(height));
        let events = events::latest(&self.events, usize::MAX).skip(self.first).take(height);
        let lines: Vec<Line> = events.map(|(line, _)| Line::from(line.as_str())).collect();
        frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
    }
}
