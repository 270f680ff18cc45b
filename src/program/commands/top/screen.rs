//! Draws the screen of `top`: the devices and the table of processes, or one opened process. Also keeps what the user
//! chose with the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState};

use super::machine::Machine;
use super::rows::{self, Column, DeviceRow, Row};
use crate::analysis::running::FileId;
use crate::render::format::{printable, styled};
use crate::render::job_page::JobPage;

/// Entries to show of each list of an opened process.
const ENTRIES: usize = 20;
/// The most lines that the table of devices takes, including the titles.
const DEVICE_LINES: u16 = 9;

const HELP: &str = "q quit  \u{2191}\u{2193} choose  Enter open  \u{2190}\u{2192} sort by  r reverse  p pause";
const HELP_OPEN: &str = "q quit  Esc back  \u{2191}\u{2193} PgUp PgDn scroll  p pause";

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
            note: String::new(),
            state: TableState::default(),
        }
    }

    /// Takes the present figures over from `machine`.
    pub fn refresh(&mut self, machine: &Machine) {
        self.rows = rows::of(machine);
        self.sort.sort(&mut self.rows, self.reversed);
        self.devices = rows::devices(machine);
        self.note = match (machine.problems().next(), self.rows.is_empty()) {
            (Some(problem), _) => problem.to_owned(),
            (None, true) => machine.nothing_to_show(),
            (None, false) => String::new(),
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

    pub fn draw(&mut self, frame: &mut Frame) {
        let devices = match (self.opened, self.devices.len()) {
            // The page of an opened process has the devices of the process.
            (Some(_), _) | (None, 0) => 0,
            (None, count) => (count as u16).saturating_add(2).min(DEVICE_LINES + 1),
        };
        let note = u16::from(!self.note.is_empty());
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Max(devices),
            Constraint::Min(1),
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
        match self.opened {
            Some(_) => self.draw_opened(frame, areas[2]),
            None => self.draw_processes(frame, areas[2]),
        }
        frame.render_widget(Paragraph::new(self.note.as_str()), areas[3]);
        let help = if self.opened.is_some() { HELP_OPEN } else { HELP };
        frame.render_widget(Paragraph::new(Line::styled(help, self.style(Modifier::DIM))), areas[4]);
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
        let titles = DeviceRow::TITLES.map(str::to_owned).to_vec();
        let shown = usize::from(DEVICE_LINES - 1);
        let mut texts: Vec<Vec<String>> = self.devices.iter().take(shown).map(DeviceRow::texts).collect();
        // The columns that are left out while the screen is too narrow, by index; the UUID goes first.
        let mut kept: Vec<usize> = (0..titles.len()).collect();
        for expendable in [1, 2, 7, 3, 6] {
            if total_width(&titles, &texts, &kept) <= usize::from(area.width) {
                break;
            }
            kept.retain(|place| *place != expendable);
        }
        texts.iter_mut().for_each(|row| pick(row, &kept));
        let mut titles = titles;
        pick(&mut titles, &kept);
        let numbers: Vec<bool> = kept.iter().map(|place| *place >= 2).collect();
        let table = self.table(titles, texts, &numbers);
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
        let mut texts: Vec<Vec<String>> = self.rows.iter().map(text).collect();
        let mut kept: Vec<usize> = (0..Column::ALL.len()).collect();
        for expendable in Column::EXPENDABLE {
            // The mark of the chosen row takes two characters.
            if total_width(&titles, &texts, &kept) + 2 <= usize::from(area.width) {
                break;
            }
            if expendable != self.sort {
                kept.retain(|place| Column::ALL[*place] != expendable);
            }
        }
        texts.iter_mut().for_each(|row| pick(row, &kept));
        let mut titles = titles;
        pick(&mut titles, &kept);
        let numbers: Vec<bool> = kept.iter().map(|place| Column::ALL[*place].is_number()).collect();
        let place = self.place();
        self.choose(place);
        self.state.select(Some(place));
        let table = self.table(titles, texts, &numbers).highlight_symbol("> ");
        let table = table.row_highlight_style(self.style(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.state);
    }

    fn table<'a>(&self, titles: Vec<String>, texts: Vec<Vec<String>>, numbers: &[bool]) -> Table<'a> {
        let all: Vec<usize> = (0..titles.len()).collect();
        let widths: Vec<u16> = widths(&titles, &texts, &all).map(|width| width as u16).collect();
        let row = |texts: Vec<String>| {
            let cells = texts.into_iter().zip(numbers).map(|(text, number)| {
                let line = Line::from(text);
                Cell::from(if *number { line.right_aligned() } else { line })
            });
            TableRow::new(cells.collect::<Vec<_>>())
        };
        let header = row(titles).style(self.style(Modifier::BOLD));
        Table::new(texts.into_iter().map(row).collect::<Vec<_>>(), widths)
            .header(header)
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

fn pick(texts: &mut Vec<String>, kept: &[usize]) {
    *texts = kept.iter().map(|place| std::mem::take(&mut texts[*place])).collect();
}

fn widths(titles: &[String], texts: &[Vec<String>], kept: &[usize]) -> impl Iterator<Item = usize> {
    kept.iter().map(|&place| {
        let cells = texts.iter().map(|row| &row[place]).chain([&titles[place]]);
        cells.map(|text| Line::from(text.as_str()).width()).max().unwrap_or(0)
    })
}

fn total_width(titles: &[String], texts: &[Vec<String>], kept: &[usize]) -> usize {
    widths(titles, texts, kept).sum::<usize>() + 2 * kept.len().saturating_sub(1)
}

#[cfg(test)]
mod tests;
