//! Draws the screen of `top`: the devices, the table of processes and the latest events, or one opened page. Also keeps
//! what the user chose with the keys.

use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
use crate::analysis::job::Job;
use crate::analysis::running::FileId;
use crate::render::format::{many, printable, styled};
use crate::render::job_page::JobPage;
use crate::render::table::lay_out;

/// Entries to show of each list of an opened process.
const ENTRIES: usize = 20;
/// Reading the opened process's journal again takes at most 1 / READ_SHARE of the time.
const READ_SHARE: u32 = 20;
/// The lines of the screen from which on there is room for events.
const ROOM_FOR_EVENTS: u16 = 14;

const HELP: &str = "q quit \u{2191}\u{2193} row Enter open \u{2190}\u{2192} sort r reverse / filter e events";
const HELP_OPEN: &str = "q quit  Esc back  \u{2191}\u{2193} PgUp PgDn scroll";
const HELP_FILTER: &str = "Type what a process must have in a column; Enter keeps it, Esc shows all processes";

/// A page that takes the place of the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Process(FileId),
    Events,
}

/// The state of the screen.
#[derive(Default)]
pub struct Screen {
    /// The column that the rows are sorted by, as its place in `COLUMNS`.
    sort: usize,
    reversed: bool,
    /// The chosen row: its process and its device, and its index when it was drawn last.
    chosen: Option<(FileId, Option<i16>)>,
    place: usize,
    /// The first row that is in sight.
    first: usize,
    opened: Option<Page>,
    scroll: usize,
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
    /// The lines of the opened page; when it was made, how long that took, and how many bytes of the journal it shows; and
    /// the title that says of when it is.
    text: Vec<String>,
    made: Option<(Instant, Duration, u64)>,
    as_of: String,
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

    /// Takes the present figures over from `machine`.
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
        self.open(machine);
    }

    /// Makes the opened page. If `machine` no longer has that process, the screen returns to the tables.
    fn open(&mut self, machine: &Machine) {
        let watched = match self.opened {
            Some(Page::Process(id)) => machine.process(id),
            Some(Page::Events) => {
                self.as_of = format!("{} failures and marks, failures first (UTC)", self.events.len());
                let all = events::latest(&self.events, usize::MAX);
                self.text = all.map(|(line, _)| line.clone()).collect();
                return;
            }
            None => None,
        };
        let Some(watched) = watched else {
            self.opened = None;
            return;
        };
        // The whole journal is read again, unless nothing is new.
        let (read, _) = watched.progress();
        let is_fresh = |(at, took, shown): (Instant, Duration, u64)| shown == read || at.elapsed() < took * READ_SHARE;
        if self.made.is_some_and(is_fresh) {
            return;
        }
        let begin = Instant::now();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.as_of = format!("{} as of {}", watched.pid, events::clock(now.as_nanos() as u64));
        let (top, bold) = (ENTRIES, false);
        let mut text = Vec::new();
        // Writing to memory cannot fail.
        let _ = match Job::load(&watched.path, |_, _| {}) {
            Ok(job) => JobPage { top, bold }.job(&mut text, &job),
            Err(error) => writeln!(text, "{error}"),
        };
        self.text = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
        self.made = Some((begin, begin.elapsed(), read));
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
        let place = chosen.unwrap_or(self.place);
        place.min(self.rows.len().saturating_sub(1))
    }

    fn choose(&mut self, place: usize) {
        self.place = place.min(self.rows.len().saturating_sub(1));
        self.chosen = self.rows.get(self.place).map(|row| (row.id, row.device));
    }

    /// Does what a key asks for.
    pub fn press(&mut self, key: KeyCode, machine: &Machine) {
        match (key, self.opened) {
            (key, _) if self.typing => {
                match key {
                    KeyCode::Char(letter) => self.filter.push(letter),
                    KeyCode::Backspace => drop(self.filter.pop()),
                    KeyCode::Esc => self.filter.clear(),
                    _ => {}
                }
                self.typing = !matches!(key, KeyCode::Enter | KeyCode::Esc);
                self.refresh(machine);
            }
            (KeyCode::Esc | KeyCode::Backspace, Some(_)) => self.opened = None,
            (_, Some(_)) => self.scroll = moved(key, self.scroll, self.page).unwrap_or(self.scroll),
            (KeyCode::Char('/'), None) => self.typing = true,
            (KeyCode::Esc, None) => {
                self.filter.clear();
                self.refresh(machine);
            }
            (KeyCode::Left | KeyCode::Char('<'), None) => self.sort_by_next(COLUMNS.len() - 1),
            (KeyCode::Right | KeyCode::Char('>'), None) => self.sort_by_next(1),
            (KeyCode::Char('r'), None) => {
                self.reversed = !self.reversed;
                rows::sort(&mut self.rows, self.sort, self.reversed);
            }
            (KeyCode::Enter | KeyCode::Char('e'), None) => {
                self.choose(self.place());
                self.opened = match key {
                    KeyCode::Enter => self.chosen.map(|(id, _)| Page::Process(id)),
                    _ => Some(Page::Events),
                };
                (self.made, self.scroll) = (None, 0);
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
        let shown = if self.colours { modifier } else { Modifier::empty() };
        Style::new().add_modifier(shown)
    }

    fn red(&self, is_failure: bool) -> Style {
        let fg = (self.colours && is_failure).then_some(Color::Red);
        Style { fg, ..Style::new() }
    }

    pub fn draw(&mut self, frame: &mut Frame) {
        let is_list = self.opened.is_none();
        let height = frame.area().height;
        // The page of an opened process has the devices of the process.
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
            self.draw_opened(frame, areas[2]);
        }
        self.draw_events(frame, areas[3]);
        frame.render_widget(Paragraph::new(self.note.as_str()), areas[4]);
        let help = match (self.typing, is_list) {
            (true, _) => HELP_FILTER,
            (false, true) => HELP,
            (false, false) => HELP_OPEN,
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
        if self.opened.is_some() {
            return format!("vramshim top  {}", self.as_of);
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
        // The mark of the chosen row takes two characters.
        let room = usize::from(area.width).saturating_sub(2);
        let mark = if self.reversed { '^' } else { '*' };
        let laid = lay_out(&COLUMNS, &texts, room, Some((self.sort, mark)));
        let (lines, count) = (usize::from(area.height), self.rows.len());
        let falls_off = count >= lines || !laid.left_out.is_empty();
        self.page = lines.saturating_sub(1 + usize::from(falls_off)).max(1);
        let place = self.place();
        match self.chosen {
            Some(_) => self.choose(place),
            None => self.place = 0,
        }
        let last_first = count.saturating_sub(self.page);
        let first = self.first.max((place + 1).saturating_sub(self.page));
        self.first = first.min(place).min(last_first);
        let mut text = vec![Line::styled(format!("  {}", laid.header), self.style(Modifier::BOLD))];
        let rows = self.rows.iter().zip(&laid.rows).enumerate();
        text.extend(rows.skip(self.first).take(self.page).map(|(number, (row, line))| {
            let style = if row.is_read {
                self.red(row.has_failed)
            } else {
                self.style(Modifier::DIM)
            };
            let (mark, chosen) = match number == place {
                true => ('>', self.style(Modifier::REVERSED)),
                false => (' ', Style::new()),
            };
            Line::styled(format!("{mark} {line}"), style.patch(chosen))
        }));
        let hidden = (count > self.page).then(|| format!("{} more rows \u{2191}\u{2193} PgDn", count - self.page));
        let no_room = (!laid.left_out.is_empty()).then(|| format!("no room: {}", laid.left_out.join(" ")));
        let said: Vec<String> = hidden.into_iter().chain(no_room).collect();
        text.push(Line::styled(said.join("; "), self.style(Modifier::DIM)));
        frame.render_widget(Paragraph::new(text), area);
    }

    fn draw_opened(&mut self, frame: &mut Frame, area: Rect) {
        let height = usize::from(area.height);
        self.scroll = self.scroll.min(self.text.len().saturating_sub(height));
        let text = self.text.iter().skip(self.scroll).take(height);
        let lines: Vec<Line> = text.map(|line| Line::from(printable(line, 1000))).collect();
        let mut page = Paragraph::new(lines);
        if self.opened == Some(Page::Events) {
            page = page.wrap(Wrap { trim: false });
        }
        frame.render_widget(page, area);
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
