//! A terminal for programs that draw on one, and its screen as a picture.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::process::{Child, Command};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use vt100::{Cell, Color, Parser};

use crate::wait::until;

/// Rows and columns.
const SIZE: (u16, u16) = (24, 120);
/// The size of a letter, in units of the picture.
const LETTER: (f64, f64) = (8.4, 18.0);
/// How long the program may take to show something.
const LIMIT: Duration = Duration::from_secs(20);
/// Background, text, and ANSI's first eight colours.
const COLOURS: [&str; 10] = [
    "#11171d", "#d6dde4", "#11171d", "#f2647e", "#3fb9a8", "#e5a33b", "#5aa5e8", "#c08ae0",
    "#6fd0c0", "#d6dde4",
];

/// A program and its terminal; dropping it ends the program.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    keys: File,
    screen: Screen,
}

#[derive(Clone)]
struct Screen(Arc<Mutex<Parser>>);

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.lock().screen().contents())
    }
}

impl Screen {
    fn lock(&self) -> MutexGuard<'_, Parser> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Terminal {
    /// Starts a program in a new terminal.
    ///
    /// # Errors
    /// The system has no terminal, or the program does not start.
    pub fn start(mut command: Command) -> Result<Self> {
        let (own, other) = pair()?;
        command.stdin(other.try_clone()?).stdout(other.try_clone()?).stderr(other);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let child = command.spawn().context("cannot start a program in a terminal")?;
        // The terminal ends with its last user: this process must not be one.
        drop(command);
        let [rows, columns] = [SIZE.0, SIZE.1].map(|it| it.try_into());
        let parser = Parser::new(rows?, columns?, 0);
        let screen = Screen(Arc::new(Mutex::new(parser)));
        let (mut output, shown) = (File::from(own.try_clone()?), screen.clone());
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count) = output.read(&mut chunk)
                && count > 0
            {
                shown.lock().process(&chunk[..count]);
            }
        });
        Ok(Self { child, keys: own.into(), screen })
    }

    /// Types letters, or what keys send.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        self.keys.write_all(keys.as_bytes()).context("cannot type")
    }

    /// Waits until the screen is as wanted.
    ///
    /// # Errors
    /// It does not get so; the error shows it.
    pub fn until(&self, what: &str, is_wanted: impl Fn(&str) -> bool) -> Result<()> {
        until(what, LIMIT, || {
            let text = self.screen.lock().screen().contents();
            Ok(if is_wanted(&text) { Ok(()) } else { Err(text) })
        })
        .map(drop)
    }

    /// Waits for the end of the program.
    ///
    /// # Errors
    /// It does not end, or fails.
    pub fn ended(&mut self) -> Result<()> {
        let mut status = None;
        until("the end of a program in a terminal", LIMIT, || {
            status = self.child.try_wait()?;
            Ok(if status.is_some() { Ok(()) } else { Err("it runs") })
        })?;
        ensure!(status.is_some_and(|it| it.success()), "{status:?}");
        Ok(())
    }

    /// The screen as SVG.
    #[must_use]
    pub fn picture(&self) -> String {
        let parser = self.screen.lock();
        let (width, height) =
            (f64::from(SIZE.1) * LETTER.0 + 32.0, f64::from(SIZE.0) * LETTER.1 + 32.0);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-size=\"14\" \
             font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\">\n\
             <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{}\"/>\n",
            COLOURS[0]
        );
        for row in 0..SIZE.0 {
            let cells: Vec<_> =
                (0..SIZE.1).filter_map(|column| parser.screen().cell(row, column)).collect();
            let mut column = 0;
            for run in cells.chunk_by(|a, b| style(a) == style(b)) {
                draw(&mut svg, row, column, run);
                column += run.len();
            }
        }
        svg + "</svg>\n"
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Background and text as places in [`COLOURS`], and whether it is bold or dim.
fn style(cell: &Cell) -> (usize, usize, bool, bool) {
    let place = |colour, default| match colour {
        Color::Idx(index) => 2 + usize::from(index % 8),
        Color::Default | Color::Rgb(..) => default,
    };
    let (back, text) = (place(cell.bgcolor(), 0), place(cell.fgcolor(), 1));
    let (back, text) = if cell.inverse() { (text, back) } else { (back, text) };
    (back, text, cell.bold(), cell.dim())
}

/// Draws cells of one style.
fn draw(svg: &mut String, row: u16, column: usize, cells: &[&Cell]) {
    let Some((back, text, bold, dim)) = cells.first().map(|cell| style(cell)) else { return };
    let (x, y) = (16.0 + column as f64 * LETTER.0, 16.0 + f64::from(row) * LETTER.1);
    let width = cells.len() as f64 * LETTER.0;
    // Writing to a text cannot fail.
    if back != 0 {
        let (height, fill) = (LETTER.1, COLOURS[back]);
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{fill}\"/>"
        );
    }
    let letters = cells.iter().map(|cell| if cell.has_contents() { cell.contents() } else { " " });
    let letters: String = letters.collect();
    let letters = letters.trim_end();
    let begin = letters.len() - letters.trim_start().len();
    let letters = &letters[begin..];
    if letters.is_empty() {
        return;
    }
    let (x, y) = (x + begin as f64 * LETTER.0, y + 13.5);
    // Whatever the font, columns stay columns.
    let length = letters.chars().count() as f64 * LETTER.0;
    let weight = if bold { " font-weight=\"bold\"" } else { "" };
    let opacity = if dim { " opacity=\"0.6\"" } else { "" };
    let letters = letters.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y}\" textLength=\"{length:.1}\" fill=\"{}\"{weight}{opacity} \
         xml:space=\"preserve\">{letters}</text>",
        COLOURS[text]
    );
}

/// The two ends of a new terminal: for who looks and types, and for programs.
fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let (mut own, mut other) = (-1, -1);
    let size = libc::winsize { ws_row: SIZE.0, ws_col: SIZE.1, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: both descriptors and the size live until the call returns; name and settings may be null.
    let result =
        unsafe { libc::openpty(&raw mut own, &raw mut other, null_mut(), null(), &raw const size) };
    ensure!(result == 0, "no terminal: {}", std::io::Error::last_os_error());
    // SAFETY: the call has opened both, and nobody else has them.
    Ok(unsafe { (OwnedFd::from_raw_fd(own), OwnedFd::from_raw_fd(other)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_text_in_its_colours_and_no_markup_from_it() {
        let mut command = Command::new("printf");
        command.arg(r"\033[31mred\033[0m <b>\033[7mback\033[0m");
        let mut terminal = Terminal::start(command).unwrap();
        terminal.ended().unwrap();
        terminal.until("all of it", |text| text.contains("back")).unwrap();
        let svg = terminal.picture();
        assert!(svg.contains("fill=\"#f2647e\" xml:space=\"preserve\">red<"), "{svg}");
        assert!(svg.contains(">&lt;b&gt;<") && !svg.contains("<b>"), "{svg}");
        assert!(svg.contains("fill=\"#11171d\" xml:space=\"preserve\">back<"), "{svg}");
    }
}
