//! One level over time, as spans.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// The number of the event in the order of time, from 0. Several events can have the same time.
    pub event: u64,
    /// Nanoseconds since the journal began.
    pub time_ns: u64,
    pub bytes: u64,
}

/// A run of changes of one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub first: Point,
    /// The first point with the fewest bytes.
    pub lowest: Point,
    /// The first point with the most bytes.
    pub highest: Point,
    pub last: Point,
}

pub struct Curve {
    pub(super) spans: Vec<Span>,
    /// If there are more spans than this, neighbours are joined.
    most: usize,
    /// Neighbours are joined if they last at most this long together; `None` as long as there are few spans.
    width_ns: Option<u64>,
    peak: Option<Point>,
}

impl Span {
    fn at(point: Point) -> Self {
        Span {
            first: point,
            lowest: point,
            highest: point,
            last: point,
        }
    }

    fn join(&mut self, later: &Span) {
        if later.lowest.bytes < self.lowest.bytes {
            self.lowest = later.lowest;
        }
        if later.highest.bytes > self.highest.bytes {
            self.highest = later.highest;
        }
        self.last = later.last;
    }

    /// The points of the span in the order of events, without repetitions.
    pub fn points(&self) -> impl Iterator<Item = Point> {
        let mut points = [self.first, self.lowest, self.highest, self.last];
        points.sort_by_key(|point| point.event);
        let mut before = None;
        points
            .into_iter()
            .filter(move |point| before.replace(point.event) != Some(point.event))
    }
}

impl Curve {
    /// A curve with at most `most` spans, and at least a third of these if the level changes more often.
    pub fn new(most: usize) -> Self {
        Curve {
            spans: Vec::new(),
            most: most.max(2),
            width_ns: None,
            peak: None,
        }
    }

    /// Adds the level after an event. Times should not decrease. A level that did not change is left out.
    pub fn push(&mut self, point: Point) {
        if self.peak.is_none_or(|peak| point.bytes > peak.bytes) {
            self.peak = Some(point);
        }
        let span = Span::at(point);
        match self.spans.last_mut() {
            Some(last) if last.last.bytes == point.bytes => {}
            Some(last) if self.width_ns.is_some_and(|width| lasts(last, &span) <= width) => last.join(&span),
            _ => {
                self.spans.push(span);
                self.reduce();
            }
        }
    }

    /// Joins neighbours, if there are too many spans.
    fn reduce(&mut self) {
        while self.spans.len() > self.most {
            let (Some(first), Some(last)) = (self.spans.first(), self.spans.last()) else {
                return;
            };
            let least = lasts(first, last) / self.most as u64;
            let width = self.width_ns.map_or(least, |width| (width + width / 2 + 1).max(least));
            self.width_ns = Some(width);
            self.spans.dedup_by(|later, earlier| {
                let joins = lasts(earlier, later) <= width;
                if joins {
                    earlier.join(later);
                }
                joins
            });
        }
    }

    pub fn points(&self) -> Vec<Point> {
        self.spans.iter().flat_map(Span::points).collect()
    }

    /// The first point at which the level is highest.
    pub fn peak(&self) -> Option<Point> {
        self.peak
    }
}

fn lasts(earlier: &Span, later: &Span) -> u64 {
    later.last.time_ns.saturating_sub(earlier.first.time_ns)
}
