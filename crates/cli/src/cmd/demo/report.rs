//! What is said at the end of the demo.

use comfy_table::{Attribute, Cell, CellAlignment, Color, LineStyle, Row, Table, TableStyle};
use console::style;
use tenure_contract::user::Attempt;
use tenure_contract::words::TaskState;

use super::plan::Kind;
use super::verify::{Record, Verdict, rerun};
use crate::output::{self, cell, cell_or_dash, fit, number, state_cell};
use crate::times;

/// How many faults are spelled out.
const COMPLAINTS: usize = 10;

pub fn render(verdict: &Verdict) -> String {
    let mut text = format!("\n{}\n\n", table(verdict));
    if let Some(example) = example(verdict) {
        text += &format!("One of the tasks held by the killed worker, {}:\n\n", example.task.task_id);
        text += &format!("{}\n\n", history(&example.attempts));
    }
    for (good, check) in &verdict.checks {
        let mark = if *good { style("✓").green() } else { style("✗").red() };
        text += &format!("  {} {check}\n", mark.bold());
    }
    for complaint in verdict.complaints.iter().take(COMPLAINTS) {
        text += &format!("    {}\n", style(complaint).red());
    }
    text + "\nGo on:\n" + &next_steps()
}

fn next_steps() -> String {
    let steps = [
        ("tenure up", "start a server and a worker on this machine"),
        ("tenure task submit default echo --payload '{\"hello\":\"world\"}' --wait", "submit your first task"),
        ("tenure worker --queue mine --operator count='wc -c'", "use your own command as an operator"),
        ("tenure --help", "all commands; see also README.md and docs/"),
    ];
    steps.iter().map(|(command, what)| format!("  {}\n      {what}\n", style(command).bold())).collect()
}

/// No lines but one below the header: it fits 80 columns.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─'));

fn table(verdict: &Verdict) -> String {
    let mut table = Table::new();
    table.load_style(STYLE);
    let header = ["Tasks that …", "Tasks", "Succeeded", "Failed", "Canceled", "Attempts", "Rerun"];
    table.set_header(Row::from(header.map(|name| Cell::new(name).add_attribute(Attribute::Bold)).to_vec()));
    for kind in Kind::ALL {
        let records: Vec<_> = verdict.of_kind(kind).collect();
        let mut cells = vec![Cell::new(kind.story())];
        cells.extend(numbers(&records, verdict).map(plain));
        table.add_row(cells);
    }
    let all: Vec<_> = verdict.records.iter().collect();
    let mut cells = vec![Cell::new("all").add_attribute(Attribute::Bold)];
    cells.extend(numbers(&all, verdict).map(|count| plain(count).add_attribute(Attribute::Bold)));
    table.add_row(cells);
    fit(&mut table);
    table.trim_fmt()
}

/// Nothing is easier to see as a blank.
fn plain(count: usize) -> Cell {
    if count == 0 { Cell::new("·").set_alignment(CellAlignment::Right).fg(Color::DarkGrey) } else { number(count) }
}

fn numbers(records: &[&Record], verdict: &Verdict) -> [usize; 6] {
    let in_state = |state: TaskState| records.iter().filter(|record| record.task.state == state).count();
    [
        records.len(),
        in_state(TaskState::Succeeded),
        in_state(TaskState::Failed),
        in_state(TaskState::Canceled),
        records.iter().map(|record| record.attempts.len()).sum(),
        rerun(records, &verdict.held),
    ]
}

fn example(verdict: &Verdict) -> Option<&Record> {
    verdict.of_kind(Kind::Long).find(|record| verdict.held.contains(&record.task.task_id))
}

pub fn history(attempts: &[Attempt]) -> String {
    let rows = attempts.iter().map(|attempt| {
        vec![
            number(attempt.attempt),
            number(attempt.fence),
            cell(&attempt.worker_id),
            state_cell(attempt.state.as_str()),
            cell_or_dash(attempt.reason.as_ref()),
            cell_or_dash(attempt.ended_at.as_ref().and_then(|end| times::between(&attempt.granted_at, end))),
        ]
    });
    output::table(&["ATTEMPT", "FENCE", "WORKER", "STATE", "REASON", "TOOK"], rows)
}
