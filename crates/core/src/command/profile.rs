//! What has to be known about a command before it is decided.

use super::Command;
use crate::batch;
use crate::id::{Seq, TaskId};
use crate::limits;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile<'a> {
    pub target: Target<'a>,
    pub kind: Kind,
    /// The decision reads the bodies of its tasks.
    pub body: bool,
    /// How many fresh numbers the decision can use.
    pub numbers: usize,
    /// How much work it is, in tasks. This bounds a batch.
    pub weight: usize,
}

/// The tasks that a command names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    None,
    Task(TaskId),
    /// Rows that background work read from the store earlier. They are checked again.
    Rows(&'a [Seq]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A holder ends its attempt. A task that is held most likely will not be any longer.
    Report,
    /// A timer found the rows by a scan. Tasks that have moved on since do not concern it.
    Scan,
    Other,
}

impl Command {
    pub fn profile(&self) -> Profile<'_> {
        let none = Profile { target: Target::None, kind: Kind::Other, body: false, numbers: 0, weight: 1 };
        // A running task may have to be put back first, because its lease has expired.
        let task = |task: TaskId| Profile { target: Target::Task(task), numbers: 2, ..none };
        let row = |row| Profile { target: Target::Rows(std::slice::from_ref(row)), numbers: 2, ..none };
        match self {
            Self::Submit(c) => Profile { weight: c.tasks.len(), ..none },
            Self::Claim(c) => Profile { weight: c.max_jobs, ..none },
            Self::ClaimTask(c) => task(c.task),
            Self::Heartbeat(c) => task(c.task),
            Self::Report(c) => Profile { kind: Kind::Report, ..task(c.task) },
            Self::Emit(c) => task(c.task),
            Self::Callback(c) => Profile { body: true, ..task(c.task) },
            Self::Cancel(c) => Profile { body: true, ..task(c.task) },
            Self::Retry(c) => Profile { body: true, ..task(c.task) },
            Self::Expire(c) => Profile { kind: Kind::Scan, ..row(&c.row) },
            Self::Promote(c) => Profile { kind: Kind::Scan, ..row(&c.row) },
            Self::Rewake(c) => row(&c.row),
            Self::Release(c) => row(&c.row),
            Self::TakePush(c) => row(&c.row),
            Self::Pushed(c) => row(&c.row),
            Self::Redrive(c) => {
                let count = c.rows.len();
                Profile { target: Target::Rows(&c.rows), body: true, numbers: count, weight: count, ..none }
            }
            Self::Hello(_) => Profile { numbers: batch::VOID_ROWS, ..none },
            Self::SetQueue(_) | Self::PatchQueue(_) | Self::PauseQueue(_) | Self::DeleteQueue(_) => none,
            Self::SubmitRun(c) => Profile { weight: c.tasks.len(), ..none },
            Self::CancelRun(_) => Profile { numbers: limits::RUN_TASKS, weight: limits::RUN_TASKS, ..none },
        }
    }

    /// The task that the command names by its id, if it names one.
    pub fn task(&self) -> Option<TaskId> {
        match self.profile().target {
            Target::Task(task) => Some(task),
            Target::None | Target::Rows(_) => None,
        }
    }

    /// The rows that background work names.
    pub fn rows(&self) -> &[Seq] {
        match self.profile().target {
            Target::Rows(rows) => rows,
            Target::None | Target::Task(_) => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::expire::Expire;
    use crate::command::redrive::Redrive;
    use crate::command::report::AttemptReport;
    use crate::command::testing::{at, id, reported, succeeded};

    #[test]
    fn a_command_names_a_task_or_rows() {
        let report: AttemptReport = reported(1, &succeeded("1"));
        let report = Command::Report(report);
        assert_eq!((report.task(), report.rows()), (Some(id()), &[][..]));
        assert_eq!(report.profile().kind, Kind::Report);
        let expire = Command::Expire(Expire { row: Seq(7) });
        assert_eq!((expire.task(), expire.rows(), expire.profile().kind), (None, &[Seq(7)][..], Kind::Scan));
    }

    #[test]
    fn a_redrive_weighs_as_much_as_it_releases() {
        let rows = vec![Seq(7), Seq(8), Seq(9)];
        let redrive = Redrive { redrive_id: 1, rows, cursor: Seq(9), finished: true, started_at: at(0) };
        let command = Command::Redrive(redrive);
        let profile = command.profile();
        assert_eq!((profile.numbers, profile.weight, profile.body), (3, 3, true));
    }
}
