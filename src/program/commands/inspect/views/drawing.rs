//! `--timeline`: live and reserved bytes over time, drawn in the terminal, with peak, failures and marks below.

use serde_json::{Value, json};

use super::study::Study;
use crate::analysis::timeline::{Curve, DeviceTimeline, Point};
use crate::render::format::{duration, size};
use crate::render::plot::{Column, rows};
use crate::render::text_or_json::Page;
use journal::format::MarkKind;

const HEIGHT: usize = 10;
/// The columns left of the drawing: a size and a border.
const LEFT: usize = 12;
/// How to draw.
#[derive(Clone, Copy)]
pub struct Terminal {
    pub width: usize,
    pub ascii: bool,
}

pub fn show(page: &mut Page, study: &Study, terminal: Terminal) {
    let Some(curves) = &study.timeline else { return };
    let mut devices = Vec::new();
    let end_ns = study.ended_ns().max(1);
    for (&device, timeline) in curves.devices.iter().filter(|(device, _)| **device >= 0) {
        let entry = study
            .job
            .header
            .devices
            .iter()
            .find(|entry| entry.ordinal == i32::from(device));
        let room = entry.map(|entry| entry.limit.unwrap_or(u64::MAX).min(entry.total_memory));
        if timeline.reserved.peak().is_none_or(|peak| peak.bytes == 0) {
            continue;
        }
        draw(page, study, device, timeline, end_ns, room, terminal);
        devices.push(json!({
            "device": device,
            "end_ns": end_ns,
            "total_memory": entry.map(|entry| entry.total_memory),
            "limit": entry.and_then(|entry| entry.limit),
            "live": points(timeline.live_points()),
            "reserved": points(timeline.reserved_points()),
        }));
    }
    if devices.is_empty() {
        page.line("The job allocated nothing on a device.");
    }
    resident(page, &curves.resident, end_ns, terminal);
    let marks = study.landmarks.marks.iter().map(|mark| {
        let kind = match mark.kind {
            MarkKind::Instant => "instant",
            MarkKind::Begin => "begin",
            MarkKind::End => "end",
        };
        json!({ "time_ns": mark.at.time_ns, "kind": kind, "text": study.labels.mark(mark.text) })
    });
    let marks: Value = marks.collect();
    page.json(
        "timeline",
        json!({ "devices": devices, "resident": points(curves.resident_points()), "marks": marks }),
    );
}

fn points(points: Vec<Point>) -> Value {
    let point = |point: &Point| json!([point.time_ns, point.bytes]);
    points.iter().map(point).collect()
}

/// Resident memory of the process, as high as half of a device.
fn resident(page: &mut Page, curve: &Curve, end_ns: u64, terminal: Terminal) {
    let Some(peak) = curve.peak().filter(|peak| peak.bytes > 0) else {
        return;
    };
    let (peak_size, peak_time) = (size(peak.bytes), duration(peak.time_ns));
    page.heading(format!(
        "Host: resident memory of the process, at most {peak_size} at {peak_time}"
    ));
    let border = if terminal.ascii { '|' } else { '│' };
    let width = width_of(terminal);
    let columns = columns(curve, width, |time_ns| place(time_ns, end_ns, width));
    let height = HEIGHT / 2;
    for (row, text) in rows(&columns, peak.bytes, height, terminal.ascii).iter().enumerate() {
        let label = if row == 0 { peak_size.as_str() } else { "" };
        let line = format!("{label:>LEFT$} {border}{text}", LEFT = LEFT - 2);
        page.line(line.trim_end().to_owned());
    }
}

fn width_of(terminal: Terminal) -> usize {
    terminal.width.saturating_sub(LEFT + 2).clamp(20, 400)
}

/// The column of a time.
fn place(time_ns: u64, end_ns: u64, width: usize) -> usize {
    ((u128::from(time_ns) * width as u128 / u128::from(end_ns)) as usize).min(width - 1)
}

fn draw(
    page: &mut Page,
    study: &Study,
    device: i16,
    timeline: &DeviceTimeline,
    end_ns: u64,
    room: Option<u64>,
    terminal: Terminal,
) {
    let width = width_of(terminal);
    let place = |time_ns: u64| place(time_ns, end_ns, width);
    let live = columns(&timeline.live, width, place);
    let most = timeline.reserved.peak().map_or(0, |peak| peak.bytes);
    let most = timeline.live.peak().map_or(0, |peak| peak.bytes).max(most).max(1);
    let room = room.map_or(String::new(), |room| format!(" of {}", size(room)));
    let peak = timeline.live.peak().unwrap_or_default();
    page.heading(format!(
        "Device {device}: live bytes, at most {} at {}; {} reserved at most{room}",
        size(peak.bytes),
        duration(peak.time_ns),
        size(timeline.reserved.peak().map_or(0, |peak| peak.bytes)),
    ));
    let reserved = columns(&timeline.reserved, width, place);
    let border = if terminal.ascii { '|' } else { '│' };
    for (row, text) in rows(&live, most, HEIGHT, terminal.ascii).into_iter().enumerate() {
        // The line of reserved bytes is drawn where nothing is live.
        let line = if terminal.ascii { '-' } else { '─' };
        let level = |column: &Column| (u128::from(column.highest) * HEIGHT as u128).div_ceil(u128::from(most)) as usize;
        let is_line = |number: usize| level(&reserved[number]) == HEIGHT - row;
        let text: String = (text.chars().enumerate())
            .map(|(number, cell)| if cell == ' ' && is_line(number) { line } else { cell })
            .collect();
        let label = if row.is_multiple_of(3) {
            size((u128::from(most) * (HEIGHT - row) as u128 / HEIGHT as u128) as u64)
        } else {
            String::new()
        };
        page.line(
            format!("{label:>LEFT$} {border}{text}", LEFT = LEFT - 2)
                .trim_end()
                .to_owned(),
        );
    }
    let corner = if terminal.ascii { "+" } else { "└" };
    let dash = if terminal.ascii { "-" } else { "─" };
    page.line(format!("{:>1$} {corner}{2}", "0 B", LEFT - 2, dash.repeat(width)));
    let mut under = vec![' '; width];
    for mark in study.landmarks.marks.iter().filter(|mark| mark.kind != MarkKind::End) {
        under[place(mark.at.time_ns)] = '|';
    }
    under[place(peak.time_ns)] = 'P';
    if let Some(failure) = study.landmarks.failure.filter(|failure| failure.device == device) {
        under[place(failure.at.time_ns)] = 'X';
    }
    let under: String = under.into_iter().collect();
    page.line(format!("{:1$}{2}", "", LEFT, under).trim_end().to_owned());
    let last = duration(end_ns);
    page.line(format!("{:2$}0{last:>1$}", "", width - 1, LEFT));
    let line = if terminal.ascii { '-' } else { '─' };
    page.line(format!(
        "{:1$}P peak, X failure for lack of memory, | mark, {line} reserved",
        "", LEFT
    ));
}

/// The lowest and highest bytes in each column. A column without a change has the level before it.
fn columns(curve: &Curve, width: usize, place: impl Fn(u64) -> usize) -> Vec<Column> {
    let mut columns: Vec<Option<Column>> = vec![None; width];
    let mut last = vec![0u64; width];
    for point in curve.spans().iter().flat_map(|span| span.points()) {
        let place = place(point.time_ns);
        let column = columns[place].get_or_insert(Column {
            lowest: point.bytes,
            highest: point.bytes,
        });
        column.lowest = column.lowest.min(point.bytes);
        column.highest = column.highest.max(point.bytes);
        last[place] = point.bytes;
    }
    let mut level = 0;
    let mut filled = Vec::with_capacity(width);
    for (place, column) in columns.into_iter().enumerate() {
        let same = Column {
            lowest: level,
            highest: level,
        };
        if column.is_some() {
            level = last[place];
        }
        filled.push(column.unwrap_or(same));
    }
    filled
}
