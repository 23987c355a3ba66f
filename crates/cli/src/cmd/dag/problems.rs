//! Errors of a DAG, shown where they are.

use std::fmt::Write as _;

use console::style;
use tenure_client::dags::DagProblem;

use crate::output::clean;

/// So many are shown; the others are counted.
const SHOWN: usize = 50;
/// Characters of a line that are shown.
const WIDTH: usize = 100;
/// Of these, before the place.
const BEFORE: usize = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Error,
    Warning,
}

/// Each problem with its place, and the line that it is in.
pub fn render(kind: Kind, file: &str, text: &str, problems: &[DagProblem]) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut shown = String::new();
    for problem in problems.iter().take(SHOWN) {
        let word = match kind {
            Kind::Error => style("error:").red().bold().for_stderr(),
            Kind::Warning => style("warning:").yellow().bold().for_stderr(),
        };
        let place = format!("{}:{}:{}", clean(file), problem.line, problem.column);
        let job = problem.job.as_ref().map(|job| format!("job {}, ", clean(job))).unwrap_or_default();
        let (field, message) = (clean(&problem.field), clean(&problem.message));
        let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
        let _ = writeln!(shown, "{word} {place}: {job}{field}{message} ({})", clean(&problem.code));
        shown += &excerpt(&lines, problem);
    }
    if problems.len() > SHOWN {
        let _ = writeln!(shown, "… and {} more: use --json to list them", problems.len() - SHOWN);
    }
    shown
}

/// The line with a caret below the place. A long line is cut around it.
fn excerpt(lines: &[&str], problem: &DagProblem) -> String {
    let (row, column) = (problem.line as usize, problem.column.max(1) as usize - 1);
    let Some(line) = row.checked_sub(1).and_then(|row| lines.get(row)) else { return String::new() };
    let characters: Vec<char> = clean(line).chars().collect();
    let first = if characters.len() > WIDTH { column.saturating_sub(BEFORE).min(characters.len()) } else { 0 };
    let last = characters.len().min(first + WIDTH);
    let lead = if first > 0 { "…" } else { "" };
    let tail = if last < characters.len() { "…" } else { "" };
    let cut: String = characters[first..last].iter().collect();
    let margin = row.to_string();
    let blank = " ".repeat(margin.len());
    let pad = " ".repeat(lead.chars().count() + column.saturating_sub(first));
    let bar = style("|").blue().for_stderr();
    let caret = style("^").red().bold().for_stderr();
    format!("{blank} {bar}\n{margin} {bar} {lead}{}{tail}\n{blank} {bar} {pad}{caret}\n", cut.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(line: u32, column: u32) -> DagProblem {
        DagProblem {
            line,
            column,
            job: Some("decode".to_owned()),
            field: "inputs[0].from.job".to_owned(),
            code: "unknown_job".to_owned(),
            message: "no job named 'imprt'; did you mean 'import'?".to_owned(),
        }
    }

    #[test]
    fn a_problem_is_shown_with_its_line_and_a_caret() {
        console::set_colors_enabled_stderr(false);
        let text = "name: chain\njobs:\n  - { job: imprt }\n";
        let shown = render(Kind::Error, "dag.yaml", text, &[problem(3, 12)]);
        let expected = "error: dag.yaml:3:12: job decode, inputs[0].from.job: no job named 'imprt'; did you mean 'import'? \
                        (unknown_job)\n  |\n3 |   - { job: imprt }\n  |            ^\n";
        assert_eq!(shown, expected);
        // Below the right character, also after others than ASCII.
        let caret = |text: &str, column: u32| {
            let shown = render(Kind::Warning, "-", text, &[problem(1, column)]);
            let lines: Vec<Vec<char>> = shown.lines().map(|line| line.chars().collect()).collect();
            lines[2][lines[3].iter().position(|c| *c == '^').unwrap()]
        };
        assert_eq!(caret("äöü: x", 6), 'x');
        assert_eq!(caret(&format!("{}x{}", "ä".repeat(500), "y".repeat(500)), 501), 'x');
        assert_eq!(caret(&format!("x{}", "y".repeat(500)), 1), 'x');
    }

    #[test]
    fn a_place_outside_of_the_text_and_hostile_texts_do_no_harm() {
        console::set_colors_enabled_stderr(false);
        assert_eq!(render(Kind::Error, "f", "", &[problem(0, 0), problem(9, 9)]).lines().count(), 2);
        let hostile = DagProblem { message: "\x1b[2J".to_owned(), ..problem(1, 900) };
        let shown = render(Kind::Error, "f", "a\x1b[31m: b", &[hostile]);
        assert!(!shown.contains('\x1b'), "{shown:?}");
        let many = vec![problem(1, 1); 60];
        assert!(render(Kind::Error, "f", "x", &many).ends_with("… and 10 more: use --json to list them\n"));
    }
}
