//! Edges beside a list of jobs, as lines of a terminal.

use super::graph::Graph;

/// More lines than this next to each other are not drawn.
const LANES: usize = 40;

/// The text to the left of each job, and lines between jobs. `None` if it would be too wide.
pub fn draw(graph: &Graph<'_>) -> Option<Vec<Row>> {
    let mut rails = Rails::default();
    for job in 0..graph.jobs.len() {
        rails.job(job, &graph.readers[job]);
        if rails.lanes.len() > LANES {
            return None;
        }
    }
    Some(rails.rows)
}

#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    pub rails: String,
    /// The job of this line; a line without one only connects others.
    pub job: Option<usize>,
}

#[derive(Default)]
struct Rails {
    /// The job that each line leads to.
    lanes: Vec<Option<usize>>,
    rows: Vec<Row>,
}

impl Rails {
    fn job(&mut self, job: usize, readers: &[usize]) {
        let into: Vec<usize> = (0..self.lanes.len()).filter(|lane| self.lanes[*lane] == Some(job)).collect();
        let own = match into.first() {
            Some(first) => *first,
            None => self.free(0),
        };
        if into.len() > 1 {
            self.connect(own, &into[1..], ['┴', '╯']);
        }
        for lane in &into {
            self.lanes[*lane] = None;
        }
        // The place is taken while the line is drawn.
        self.lanes[own] = Some(job);
        let rails = self.cells(|lane, taken| match taken {
            _ if lane == own => '●',
            true => '│',
            false => ' ',
        });
        self.rows.push(Row { rails, job: Some(job) });
        self.lanes[own] = None;
        let mut out = Vec::new();
        for (index, reader) in readers.iter().enumerate() {
            let lane = if index == 0 { own } else { self.free(own + 1) };
            self.lanes[lane] = Some(*reader);
            out.push(lane);
        }
        if out.len() > 1 {
            self.connect(own, &out[1..], ['┬', '╮']);
        }
        while self.lanes.last() == Some(&None) {
            self.lanes.pop();
        }
    }

    /// The first place from here on that no line takes.
    fn free(&mut self, from: usize) -> usize {
        let found = (from..self.lanes.len()).find(|lane| self.lanes[*lane].is_none());
        found.unwrap_or_else(|| {
            self.lanes.push(None);
            while self.lanes.len() <= from {
                self.lanes.push(None);
            }
            self.lanes.len() - 1
        })
    }

    /// A line from one lane to others on its right.
    fn connect(&mut self, own: usize, others: &[usize], [middle, last]: [char; 2]) {
        let end = others.iter().copied().max().unwrap_or(own);
        let mut text = String::new();
        for lane in 0..self.lanes.len() {
            let taken = self.lanes[lane].is_some();
            text.push(match lane {
                _ if lane == own => '├',
                _ if lane == end => last,
                _ if others.contains(&lane) => middle,
                _ if lane > own && lane < end => {
                    if taken {
                        '┼'
                    } else {
                        '─'
                    }
                }
                _ if taken => '│',
                _ => ' ',
            });
            text.push(if lane >= own && lane < end { '─' } else { ' ' });
        }
        self.rows.push(Row { rails: text.trim_end().to_owned(), job: None });
    }

    fn cells(&self, draw: impl Fn(usize, bool) -> char) -> String {
        let cells = self.lanes.iter().enumerate().map(|(lane, target)| draw(lane, target.is_some()));
        let text: String = cells.flat_map(|cell| [cell, ' ']).collect();
        text.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::dag;
    use super::*;

    fn drawn(jobs: &[(&str, &[&str])]) -> String {
        let dag = dag(jobs);
        let graph = Graph::of(&dag);
        let rows = draw(&graph).unwrap();
        rows.iter()
            .map(|row| match row.job {
                Some(job) => format!("{} {}\n", row.rails, graph.jobs[job].name),
                None => format!("{}\n", row.rails),
            })
            .collect()
    }

    #[test]
    fn a_chain_is_one_line() {
        assert_eq!(drawn(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]), "● a\n● b\n● c\n");
    }

    #[test]
    fn lines_part_and_meet() {
        let text = drawn(&[("a", &[]), ("b", &["a"]), ("c", &["a"]), ("d", &["b", "c"])]);
        assert_eq!(text, "● a\n├─╮\n● │ b\n│ ● c\n├─╯\n● d\n");
    }

    #[test]
    fn lines_that_have_nothing_to_do_with_each_other_cross() {
        let text = drawn(&[("a", &[]), ("b", &[]), ("c", &["a"]), ("d", &["a", "b"]), ("e", &["b"])]);
        assert_eq!(
            text,
            "● a\n├─╮\n│ │ ● b\n│ │ ├─╮\n● │ │ │ c\n  ├─╯ │\n  ● │ d\n    ● e\n"
                .replace("  ● │ d", "  ●   │ d")
                .replace("    ● e", "      ● e")
        );
    }

    #[test]
    fn too_many_lines_are_not_drawn() {
        let names: Vec<String> = (0..60).map(|n| format!("r{n}")).collect();
        let mut jobs: Vec<(&str, &[&str])> = vec![("a", &[])];
        jobs.extend(names.iter().map(|name| (name.as_str(), &["a"][..])));
        let dag = dag(&jobs);
        assert_eq!(draw(&Graph::of(&dag)), None);
    }
}
