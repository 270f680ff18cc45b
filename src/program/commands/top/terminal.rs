//! Runs the screen of `top`: draws, reads keys and signals, and restores the terminal at the end, also after a panic or
//! signal.

use std::io::{self, Stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::low_level::emulate_default_handler;

use super::machine::Machine;
use super::screen::{Key, Screen};
use crate::failure::Failure;

/// The longest time between a signal and the reaction to it.
const LISTEN: Duration = Duration::from_millis(50);
/// The longest time for which journals are read between two readings of keys.
const READ: Duration = Duration::from_millis(50);
/// The signals that end the program.
const ENDING: [i32; 4] = [SIGTERM, SIGHUP, SIGINT, SIGQUIT];

/// Shows the machine until a key or a signal ends it.
pub fn run(machine: Machine, interval: Duration) -> Result<(), Failure> {
    let signals = Signals::listen().map_err(Failure::failed)?;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |information| {
        leave();
        hook(information);
    }));
    let shown = open().and_then(|mut terminal| show(&mut terminal, machine, interval, &signals));
    leave();
    match shown {
        Ok(None) => Ok(()),
        // The program ends by the same signal, so that its parent process sees the cause.
        Ok(Some(signal)) => emulate_default_handler(signal).map_err(Failure::failed),
        Err(error) => Err(Failure::failed(format!("cannot use the terminal: {error}"))),
    }
}

type Screens = Terminal<CrosstermBackend<Stdout>>;

/// Switches to an empty screen and to raw mode.
fn open() -> io::Result<Screens> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    Terminal::new(CrosstermBackend::new(io::stdout()))
}

/// Restores the terminal. Errors are ignored, because the terminal may be closed.
fn leave() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// The signals that have arrived.
struct Signals {
    ending: Vec<(i32, Arc<AtomicBool>)>,
    stop: Arc<AtomicBool>,
    go_on: Arc<AtomicBool>,
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        let flag = |signal| {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, flag.clone()).map(|_| flag)
        };
        Ok(Signals {
            ending: (ENDING.into_iter())
                .map(|signal| Ok((signal, flag(signal)?)))
                .collect::<io::Result<_>>()?,
            stop: flag(SIGTSTP)?,
            go_on: flag(SIGCONT)?,
        })
    }

    fn ended_by(&self) -> Option<i32> {
        let came = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        self.ending
            .iter()
            .find(|(_, flag)| came(flag))
            .map(|(signal, _)| *signal)
    }
}

/// Draws and handles keys until the user quits (`None`) or a signal ends the program.
fn show(
    terminal: &mut Screens,
    mut machine: Machine,
    interval: Duration,
    signals: &Signals,
) -> io::Result<Option<i32>> {
    let mut screen = Screen::new();
    let mut next = Instant::now();
    // Whether journals have bytes that are not read yet.
    let mut behind = false;
    let mut changed = true;
    loop {
        if let Some(signal) = signals.ended_by() {
            return Ok(Some(signal));
        }
        if signals.stop.swap(false, Ordering::Relaxed) {
            stop(terminal)?;
            changed = true;
        }
        if signals.go_on.swap(false, Ordering::Relaxed) {
            // The shell may have changed the terminal while the program was stopped.
            leave();
            *terminal = open()?;
            changed = true;
        }
        let due = Instant::now() >= next;
        if (due || behind) && !screen.paused {
            if due {
                machine.discover();
                next = Instant::now() + interval;
            }
            behind = !machine.follow(READ);
            if due {
                machine.refresh();
                machine.ask_meanwhile();
            }
            screen.refresh(&machine);
            changed = true;
        }
        if std::mem::take(&mut changed) {
            terminal.draw(|frame| screen.draw(frame))?;
        }
        let wait = match (screen.paused, behind) {
            (true, _) => LISTEN,
            (false, true) => Duration::ZERO,
            (false, false) => next.saturating_duration_since(Instant::now()).min(LISTEN),
        };
        if !event::poll(wait)? {
            continue;
        }
        // A key was pressed, or the size of the terminal changed.
        changed = true;
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match meaning(key) {
                Some(Meaning::Quit) => return Ok(None),
                Some(Meaning::Stop) => stop(terminal)?,
                Some(Meaning::Key(key)) => screen.press(key, &machine),
                None => {}
            },
            _ => {}
        }
    }
}

/// Stops the program for job control; returns when it is continued.
fn stop(terminal: &mut Screens) -> io::Result<()> {
    leave();
    // The programs around this one stop too. The kernel stops no group of processes that no shell could continue, such as
    // that of `ssh -t HOST vramshim top`. SAFETY: the calls read and write structures of ours, the default action has no
    // handler, and the handler that comes back was there before.
    unsafe {
        let (mut default, mut before): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(SIGTSTP, &default, &mut before);
        libc::kill(0, SIGTSTP);
        libc::sigaction(SIGTSTP, &before, std::ptr::null_mut());
    }
    *terminal = open()?;
    Ok(())
}

enum Meaning {
    Quit,
    Stop,
    Key(Key),
}

fn meaning(key: KeyEvent) -> Option<Meaning> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Some(Meaning::Quit),
            KeyCode::Char('z') => Some(Meaning::Stop),
            _ => None,
        };
    }
    Some(Meaning::Key(match key.code {
        KeyCode::Char('q') => return Some(Meaning::Quit),
        KeyCode::Up | KeyCode::Char('k') => Key::Up,
        KeyCode::Down | KeyCode::Char('j') => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Left | KeyCode::Char('<') => Key::Left,
        KeyCode::Right | KeyCode::Char('>') => Key::Right,
        KeyCode::Char('r') => Key::Reverse,
        KeyCode::Char('p' | ' ') => Key::Pause,
        KeyCode::Char('?') => Key::Help,
        KeyCode::Enter => Key::Open,
        KeyCode::Esc | KeyCode::Backspace => Key::Back,
        _ => return None,
    }))
}
