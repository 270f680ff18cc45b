//! Draws the screen of `top`: the devices, the table of processes and the latest events, or one opened process. Also keeps
//! what the user chose with the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState};

use super::devices::{self, DeviceRow};
use super::events;
use super::machine::Machine;
use super::rows::{self, Column, Row};
use super::spark::spark;
use crate::analysis::running::FileId;
use crate::analysis::watch::{INTERVALS, Watched};
use crate::render::format::{printable, size, styled};
use crate::render::job_page::JobPage;
use crate::render::width::{fitting, pick, width};

/// Entries to show of each list of an opened process.
const ENTRIES: usize = 20;
/// The most lines that the table of devices takes, including the titles.
const DEVICE_LINES: u16 = 9;

/// The most events that are shown, and the lines of the screen from which on there is room for them.
const EVENT_LINES: u16 = 5;
const ROOM_FOR_EVENTS: u16 = 14;

const HELP: &str = "q quit  ? keys  \u{2191}\u{2193} choose  Enter open  \u{2190}\u{2192} sort by  r reverse  p pause";
const HELP_OPEN: &str = "q quit  ? keys  Esc back  \u{2191}\u{2193} PgUp PgDn scroll  p pause";

const KEYS: &str = "
  ?                    shows these keys, and hides them
  Up Down, k j         choose a process, or scroll an opened one
  PgUp PgDn Home End   the same, faster
  Enter                opens the process: its devices, classes, APIs, largest allocations
  Esc, Backspace       goes back
  Left Right, < >      choose the column to sort by, marked with *
  r                    reverses the order, marked with ^
  p, space             pauses, and goes on
  q, Ctrl+C            quits

  busy         share of the time in which a kernel ran, by NVML
  used, nvml   bytes in use on the device, and by the process, by NVML
  live lately  the most live bytes between two updates, the latest at the right
  host         resident memory of the process, as its journal last said
  other        a process that is not under the library
  no journal   a process under the library whose journal is off or cannot be read
";

/// The state of the screen.
pub struct Screen {
    sort: Column,
    reversed: bool,
    pub paused: bool,
    /// The chosen row: its process, and its index among the rows of that process.
    chosen: Option<(FileId, usize)>,
    opened: Option<FileId>,
    scroll: u16,
    /// Height of the lower part in lines; known after the first drawing.
    page: u16,
    colours: bool,
    rows: Vec<Row>,
    devices: Vec<DeviceRow>,
    /// The lines of the opened process's page.
    text: Vec<String>,
    /// Whether the list of keys is shown.
    keys: bool,
    /// The latest events as text, the latest last, and whether each is a failure.
    events: Vec<(String, bool)>,
    note: String,
    state: TableState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
    Reverse,
    Pause,
    Open,
    Back,
    Help,
}

impl Screen {
    pub fn new() -> Screen {
        Screen {
            sort: Column::Reserved,
            reversed: false,
            paused: false,
            chosen: None,
            opened: None,
            scroll: 0,
            page: 1,
            colours: styled(),
            rows: Vec::new(),
            devices: Vec::new(),
            text: Vec::new(),
            keys: false,
            events: Vec::new(),
            note: String::new(),
            state: TableState::default(),
        }
    }

    /// Takes the present figures over from `machine`.
    pub fn refresh(&mut self, machine: &Machine) {
        self.rows = rows::of(machine);
        self.sort.sort(&mut self.rows, self.reversed);
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
        self.text.clear();
        let Some(watched) = self.opened.and_then(|id| machine.process(id)) else {
            self.opened = None;
            return;
        };
        if !watched.is_read() {
            self.text.push("Its journal is being read.".to_owned());
            return;
        }
        let page = JobPage {
            top: ENTRIES,
            bold: false,
        };
        let mut text = Vec::new();
        // Writing to memory cannot fail.
        let _ = page.job(&mut text, &watched.job);
        self.text.extend(levels(watched));
        self.text
            .extend(String::from_utf8_lossy(&text).lines().map(str::to_owned));
    }

    /// The index of the chosen row. If the row is gone, the process's first row is taken, or else the row at the same
    /// index.
    fn place(&self) -> usize {
        let of_process = |id| {
            let rows = self.rows.iter().enumerate();
            rows.filter(move |(_, row)| row.id == id).map(|(place, _)| place)
        };
        let chosen = self
            .chosen
            .and_then(|(id, number)| of_process(id).nth(number).or(of_process(id).next()));
        let place = chosen.or(self.state.selected()).unwrap_or(0);
        place.min(self.rows.len().saturating_sub(1))
    }

    fn choose(&mut self, place: usize) {
        let place = place.min(self.rows.len().saturating_sub(1));
        self.chosen = self.rows.get(place).map(|row| {
            let before = self.rows[..place].iter().filter(|other| other.id == row.id).count();
            (row.id, before)
        });
    }

    /// Does what a key asks for.
    pub fn press(&mut self, key: Key, machine: &Machine) {
        let page = usize::from(self.page.max(1));
        let place = self.place();
        match (key, self.opened) {
            (Key::Help, _) => self.keys = !self.keys,
            (Key::Back, _) if self.keys => self.keys = false,
            (Key::Pause, _) => self.paused = !self.paused,
            (Key::Back, _) => self.opened = None,
            (Key::Up, Some(_)) => self.scroll = self.scroll.saturating_sub(1),
            (Key::Down, Some(_)) => self.scroll = self.scroll.saturating_add(1),
            (Key::PageUp, Some(_)) => self.scroll = self.scroll.saturating_sub(self.page),
            (Key::PageDown, Some(_)) => self.scroll = self.scroll.saturating_add(self.page),
            (Key::Home, Some(_)) => self.scroll = 0,
            (Key::End, Some(_)) => self.scroll = u16::MAX,
            (_, Some(_)) => {}
            (Key::Up, None) => self.choose(place.saturating_sub(1)),
            (Key::Down, None) => self.choose(place + 1),
            (Key::PageUp, None) => self.choose(place.saturating_sub(page)),
            (Key::PageDown, None) => self.choose(place + page),
            (Key::Home, None) => self.choose(0),
            (Key::End, None) => self.choose(usize::MAX),
            (Key::Left, None) => self.sort_by_next(Column::ALL.len() - 1),
            (Key::Right, None) => self.sort_by_next(1),
            (Key::Reverse, None) => {
                self.reversed = !self.reversed;
                self.sort.sort(&mut self.rows, self.reversed);
            }
            (Key::Open, None) => {
                self.choose(place);
                self.opened = self.chosen.map(|(id, _)| id);
                self.scroll = 0;
                self.open(machine);
            }
        }
    }

    fn sort_by_next(&mut self, step: usize) {
        let all = Column::ALL;
        let place = all.iter().position(|column| *column == self.sort).unwrap_or(0);
        self.sort = all[(place + step) % all.len()];
        self.reversed = false;
        self.sort.sort(&mut self.rows, false);
    }

    fn style(&self, modifier: Modifier) -> Style {
        match self.colours {
            true => Style::new().add_modifier(modifier),
            false => Style::new(),
        }
    }

    fn colour(&self, colour: Color) -> Style {
        match self.colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    pub fn draw(&mut self, frame: &mut Frame) {
        let is_list = self.opened.is_none() && !self.keys;
        let devices = match (is_list, self.devices.len()) {
            // The page of an opened process has the devices of the process.
            (false, _) | (true, 0) => 0,
            (true, count) => (count as u16).saturating_add(2).min(DEVICE_LINES + 1),
        };
        let events = match (is_list && frame.area().height >= ROOM_FOR_EVENTS, self.events.len()) {
            (false, _) | (true, 0) => 0,
            (true, count) => count as u16 + 1,
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
        self.page = areas[2].height.saturating_sub(1).max(1);
        match (self.keys, self.opened) {
            (true, _) => frame.render_widget(Paragraph::new(KEYS), areas[2]),
            (false, Some(_)) => self.draw_opened(frame, areas[2]),
            (false, None) => self.draw_processes(frame, areas[2]),
        }
        self.draw_events(frame, areas[3]);
        frame.render_widget(Paragraph::new(self.note.as_str()), areas[4]);
        let help = match (self.keys, self.opened) {
            (true, _) => "? or Esc back  q quit",
            (false, Some(_)) => HELP_OPEN,
            (false, None) => HELP,
        };
        frame.render_widget(Paragraph::new(Line::styled(help, self.style(Modifier::DIM))), areas[5]);
    }

    fn draw_events(&self, frame: &mut Frame, area: Rect) {
        let title = Line::styled("Latest failures and marks (UTC)", self.style(Modifier::BOLD));
        let lines = self.events.iter().map(|(text, is_failure)| match is_failure {
            true => Line::styled(text.as_str(), self.colour(Color::Red)),
            false => Line::from(text.as_str()),
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
            self.sort.title()
        );
        if self.reversed {
            title.push_str(", reversed");
        }
        if self.paused {
            title.push_str("  PAUSED");
        }
        title
    }

    fn draw_devices(&self, frame: &mut Frame, area: Rect) {
        let titles = DeviceRow::TITLES;
        let shown = usize::from(DEVICE_LINES - 1);
        let texts: Vec<Vec<String>> = self.devices.iter().take(shown).map(DeviceRow::texts).collect();
        let kept = fitting(&titles, &texts, &DeviceRow::EXPENDABLE, usize::from(area.width));
        let styles: Vec<Style> = vec![Style::new(); texts.len()];
        let table = self.table(&titles, texts, &kept, &styles, |place| place >= DeviceRow::TEXTS);
        frame.render_widget(table, area);
    }

    fn draw_processes(&mut self, frame: &mut Frame, area: Rect) {
        if self.rows.is_empty() {
            return;
        }
        let titles: Vec<String> = (Column::ALL.iter())
            .map(|column| match (*column == self.sort, self.reversed) {
                (true, false) => format!("*{}", column.title()),
                (true, true) => format!("^{}", column.title()),
                (false, _) => column.title().to_owned(),
            })
            .collect();
        let text = |row: &Row| Column::ALL.iter().map(|column| column.text(row)).collect();
        let texts: Vec<Vec<String>> = self.rows.iter().map(text).collect();
        let is_expendable = |column: &Column| *column != self.sort && Column::EXPENDABLE.contains(column);
        let place = |column: &Column| Column::ALL.iter().position(|one| one == column);
        let expendable: Vec<usize> = (Column::EXPENDABLE.iter())
            .filter(|column| is_expendable(column))
            .filter_map(place)
            .collect();
        // The mark of the chosen row takes two characters.
        let kept = fitting(&titles, &texts, &expendable, usize::from(area.width).saturating_sub(2));
        let place = self.place();
        self.choose(place);
        self.state.select(Some(place));
        let styles: Vec<Style> = (self.rows.iter())
            .map(|row| match (row.has_failed(), row.is_read()) {
                (true, _) => self.colour(Color::Red),
                (false, true) => Style::new(),
                (false, false) => self.style(Modifier::DIM),
            })
            .collect();
        let table = self.table(&titles, texts, &kept, &styles, |place| Column::ALL[place].is_number());
        let table = table
            .highlight_symbol("> ")
            .row_highlight_style(self.style(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.state);
    }

    fn table<'a, T: AsRef<str>>(
        &self,
        titles: &[T],
        mut texts: Vec<Vec<String>>,
        kept: &[usize],
        styles: &[Style],
        is_number: impl Fn(usize) -> bool,
    ) -> Table<'a> {
        let widths: Vec<u16> = kept.iter().map(|&place| width(titles, &texts, place) as u16).collect();
        let row = |texts: Vec<String>| {
            let cells = texts.into_iter().zip(kept).map(|(text, &place)| {
                let line = Line::from(text);
                Cell::from(if is_number(place) { line.right_aligned() } else { line })
            });
            TableRow::new(cells.collect::<Vec<_>>())
        };
        texts.iter_mut().for_each(|row| pick(row, kept));
        let header = kept.iter().map(|&place| titles[place].as_ref().to_owned()).collect();
        let rows = texts
            .into_iter()
            .zip(styles)
            .map(|(texts, style)| row(texts).style(*style));
        Table::new(rows.collect::<Vec<_>>(), widths)
            .header(row(header).style(self.style(Modifier::BOLD)))
            .column_spacing(2)
    }

    fn draw_opened(&mut self, frame: &mut Frame, area: Rect) {
        let lines = u16::try_from(self.text.len()).unwrap_or(u16::MAX);
        self.scroll = self.scroll.min(lines.saturating_sub(area.height));
        let text = self
            .text
            .iter()
            .skip(usize::from(self.scroll))
            .take(usize::from(area.height));
        let lines: Vec<Line> = text.map(|line| Line::from(printable(line, 1000))).collect();
        frame.render_widget(Paragraph::new(lines), area);
    }
}

/// The live bytes of each device of an opened process over the last updates.
fn levels(watched: &Watched) -> Vec<String> {
    let line = |(device, levels): (&i16, &std::collections::VecDeque<u64>)| {
        let levels: Vec<u64> = levels.iter().copied().collect();
        let highest = levels.iter().copied().max().unwrap_or(0);
        let updates = levels.len();
        format!(
            "device {device}: live bytes at the last {updates} updates, up to {}: {}",
            size(highest),
            spark(&levels, INTERVALS)
        )
    };
    let devices = watched
        .levels
        .iter()
        .filter(|(device, _)| **device != base::cuda::HOST_DEVICE);
    devices.map(line).collect()
}

#[cfg(test)]
mod tests;
