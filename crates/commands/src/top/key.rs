//! Handles keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::{App, Sort, View};

/// The number of lines that Page Up and Page Down move.
const PAGE: usize = 10;

/// Handles a key. Returns true if it ends the view.
pub(super) fn is_end(app: &mut App, key: KeyEvent) -> bool {
    let line = app.selected_line();
    // In raw mode Ctrl-C is an ordinary key.
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return matches!(key.code, KeyCode::Char('c' | 'd'));
    }
    if app.is_typing {
        type_filter(app, key.code);
        return false;
    }
    match key.code {
        KeyCode::Char('q') => return true,
        KeyCode::Esc if app.view != View::Interface => app.view = View::Interface,
        KeyCode::Esc if !app.filter.is_empty() => set_filter(app, String::new()),
        KeyCode::Esc => return true,
        KeyCode::Char('?') if app.view == View::Help => app.view = View::Interface,
        KeyCode::Char('?') => app.view = View::Help,
        KeyCode::Char('/') => (app.view, app.is_typing) = (View::Interface, true),
        KeyCode::Enter if app.view == View::Interface && !app.order.is_empty() => {
            app.select_line(line);
            app.view = View::Peer;
        }
        KeyCode::Enter => app.view = View::Interface,
        KeyCode::Down | KeyCode::Char('j') => app.select_line(line + 1),
        KeyCode::Up | KeyCode::Char('k') => app.select_line(line.saturating_sub(1)),
        KeyCode::PageDown => app.select_line(line + PAGE),
        KeyCode::PageUp => app.select_line(line.saturating_sub(PAGE)),
        KeyCode::Home | KeyCode::Char('g') => app.select_line(0),
        KeyCode::End | KeyCode::Char('G') => app.select_line(usize::MAX),
        KeyCode::Char('n') => app.sort_by(Sort::Name),
        KeyCode::Char('h') => app.sort_by(Sort::Handshake),
        KeyCode::Char('r') => app.sort_by(Sort::RateIn),
        KeyCode::Char('t') => app.sort_by(Sort::RateOut),
        KeyCode::Char('R') => app.sort_by(Sort::TotalIn),
        KeyCode::Char('T') => app.sort_by(Sort::TotalOut),
        KeyCode::Char('i') => app.reverse(),
        KeyCode::Char('p') => app.is_paused = !app.is_paused,
        _ => {}
    }
    false
}

fn type_filter(app: &mut App, key: KeyCode) {
    let mut filter = std::mem::take(&mut app.filter);
    match key {
        KeyCode::Char(letter) => filter.push(letter),
        KeyCode::Backspace => drop(filter.pop()),
        KeyCode::Enter => app.is_typing = false,
        KeyCode::Esc => {
            filter.clear();
            app.is_typing = false;
        }
        _ => {}
    }
    set_filter(app, filter);
}

fn set_filter(app: &mut App, filter: String) {
    app.filter = filter;
    app.arrange();
}
