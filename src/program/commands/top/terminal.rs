//! Runs the screen of `top`: draws, reads keys and signals, and restores the terminal at the end, also after a panic or
//! signal.

use std::io::{self, IsTerminal, Stdout};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::machine::Machine;
use super::screen::Screen;
use crate::failure::Failure;

/// The longest time between a signal and the reaction to it.
const LISTEN: Duration = Duration::from_millis(50);
/// The longest time for which journals are read between two readings of keys.
const READ: Duration = Duration::from_millis(50);

/// Shows the machine until a key or a signal ends it.
pub fn run(machine: Machine, interval: Duration) -> Result<(), Failure> {
    let ending = [SIGTERM, SIGHUP, SIGINT, SIGQUIT];
    let mut signals = Signals::new(ending.into_iter().chain([SIGTSTP, SIGCONT])).map_err(Failure::failed)?;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |information| {
        leave();
        hook(information);
    }));
    end_with_the_terminal();
    end_at_last(ending).map_err(Failure::failed)?;
    let shown = open().and_then(|mut terminal| show(&mut terminal, machine, interval, &mut signals));
    leave();
    match shown {
        Ok(None) => Ok(()),
        // The program ends by the same signal, so that its parent process sees the cause.
        Ok(Some(signal)) => emulate_default_handler(signal).map_err(Failure::failed),
        Err(error) => Err(Failure::failed(format!("cannot use the terminal: {error}"))),
    }
}

/// Ends the program by SIGHUP once the terminal is gone. This has a thread of its own, because crossterm reads a terminal
/// that hung up without an end.
fn end_with_the_terminal() {
    let watched = |fd| libc::pollfd {
        // `poll` passes over a negative number. What is no terminal, such as /dev/null, does not hang up.
        fd,
        events: 0,
        revents: 0,
    };
    let stdin = if io::stdin().is_terminal() { 0 } else { -1 };
    let mut terminals = [watched(stdin), watched(1)];
    std::thread::spawn(move || {
        // Of no event but an error or a hang-up `poll` tells. SAFETY: the array outlives the call, which has its length.
        while unsafe { libc::poll(terminals.as_mut_ptr(), 2, -1) } <= 0 {}
        let _ = emulate_default_handler(SIGHUP);
    });
}

/// Ends the program by a signal that it did not obey within half a second, because it reads a long journal, or because
/// the terminal takes no output.
fn end_at_last(ending: [i32; 4]) -> io::Result<()> {
    let mut signals = Signals::new(ending)?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            std::thread::sleep(Duration::from_millis(500));
            // Who draws may hold the terminal for ever.
            std::thread::spawn(leave);
            std::thread::sleep(Duration::from_millis(200));
            let _ = emulate_default_handler(signal);
        }
    });
    Ok(())
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

/// Draws and handles keys until the user quits (`None`) or a signal ends the program.
fn show(
    terminal: &mut Screens,
    mut machine: Machine,
    interval: Duration,
    signals: &mut Signals,
) -> io::Result<Option<i32>> {
    let mut screen = Screen::new();
    let mut next = Instant::now();
    // Whether journals have bytes that are not read yet.
    let mut behind = false;
    let mut changed = true;
    loop {
        for signal in signals.pending() {
            changed = true;
            match signal {
                SIGTSTP => stop(terminal)?,
                // The shell may have changed the terminal while the program was stopped.
                SIGCONT => {
                    leave();
                    *terminal = open()?;
                }
                ending => return Ok(Some(ending)),
            }
        }
        let due = Instant::now() >= next;
        if due || behind {
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
        let wait = if behind {
            Duration::ZERO
        } else {
            next.saturating_duration_since(Instant::now()).min(LISTEN)
        };
        if !event::poll(wait)? {
            continue;
        }
        // A key was pressed, or the size of the terminal changed.
        changed = true;
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                match (key.modifiers.contains(KeyModifiers::CONTROL), key.code) {
                    (false, KeyCode::Char('q')) if !screen.is_typing() => return Ok(None),
                    (true, KeyCode::Char('c')) => return Ok(None),
                    (true, KeyCode::Char('z')) => stop(terminal)?,
                    (true, _) => {}
                    (false, key) => screen.press(key, &machine),
                }
            }
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
