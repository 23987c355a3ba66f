//! The graph of a DAG as an SVG picture: layers from left to right, no script, no font or style from elsewhere.

use std::fmt::Write as _;

use tenure_client::dags::{Dag, DagJob};

use super::graph::Graph;

const BOX: (usize, usize) = (200, 56);
const GAP: (usize, usize) = (90, 24);
const MARGIN: usize = 24;
const TITLE: usize = 40;
/// Characters of a name that fit into a box.
const NAME: usize = 24;
const DETAIL: usize = 30;
/// How often jobs are put beside what they read.
const SWEEPS: usize = 4;

const STYLE: &str = "\
text{font:13px ui-sans-serif,system-ui,sans-serif;fill:#1a1a1a}\
.d{font-size:11px;fill:#666}.n{font-weight:600}.t{font-size:16px;font-weight:600}\
rect{fill:#fff;stroke:#8a94a6;stroke-width:1.2}.s rect{stroke:#2563eb}.f rect{stroke:#dc2626;stroke-width:2}\
.o rect{stroke-dasharray:4 3;fill:#f6f7f9}path{fill:none;stroke:#8a94a6;stroke-width:1.4}\
.b{fill:#fff;stroke:none}marker path{fill:#8a94a6;stroke:none}\
@media(prefers-color-scheme:dark){text{fill:#e8e8e8}.d{fill:#9aa3b2}.b{fill:#15181d}rect{fill:#1f242c}.o rect{fill:#191d23}}";

/// A box of the picture.
struct Node<'a> {
    name: String,
    job: Option<&'a DagJob>,
    layer: usize,
    /// Boxes that it reads.
    reads: Vec<usize>,
    row: usize,
}

pub fn render(dag: &Dag) -> String {
    let graph = Graph::of(dag);
    let mut nodes = nodes(&graph);
    place(&mut nodes);
    let layers = nodes.iter().map(|node| node.layer + 1).max().unwrap_or(1);
    let rows = nodes.iter().map(|node| node.row + 1).max().unwrap_or(1);
    let width = 2 * MARGIN + layers * BOX.0 + (layers - 1) * GAP.0;
    let height = 2 * MARGIN + TITLE + rows * BOX.1 + (rows - 1) * GAP.1;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>DAG {name}, version {version}</title>\n<style>{STYLE}</style>\n\
         <defs><marker id=\"a\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
         <path d=\"M0 0L8 4L0 8z\"/></marker></defs>\n\
         <rect class=\"b\" width=\"{width}\" height=\"{height}\"/>\n\
         <text class=\"t\" x=\"{MARGIN}\" y=\"{}\">{name}</text>\n<text class=\"d\" x=\"{MARGIN}\" y=\"{}\">version {version}, {state}</text>\n",
        MARGIN + 14,
        MARGIN + 32,
        name = escaped(&dag.name),
        version = dag.version,
        state = escaped(&dag.state),
    );
    for node in &nodes {
        for from in &node.reads {
            let (from, to) = (corner(&nodes[*from]), corner(node));
            let (x1, y1, x2, y2) = (from.0 + BOX.0, from.1 + BOX.1 / 2, to.0, to.1 + BOX.1 / 2);
            let middle = usize::midpoint(x1, x2);
            let _ =
                writeln!(svg, "<path d=\"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}\" marker-end=\"url(#a)\"/>");
        }
    }
    for node in &nodes {
        draw(node, &mut svg);
    }
    svg += "</svg>\n";
    svg
}

fn corner(node: &Node<'_>) -> (usize, usize) {
    (MARGIN + node.layer * (BOX.0 + GAP.0), MARGIN + TITLE + node.row * (BOX.1 + GAP.1))
}

fn nodes<'a>(graph: &Graph<'a>) -> Vec<Node<'a>> {
    // What comes from other DAGs stands in a layer before everything else.
    let shift = usize::from(!graph.outside.is_empty());
    let mut nodes: Vec<Node<'a>> = graph
        .jobs
        .iter()
        .zip(&graph.layers)
        .map(|(job, layer)| Node {
            name: job.name.clone(),
            job: Some(*job),
            layer: layer + shift,
            reads: Vec::new(),
            row: 0,
        })
        .collect();
    for (from, to) in graph.edges() {
        nodes[to].reads.push(from);
    }
    for (name, readers) in &graph.outside {
        let index = nodes.len();
        nodes.push(Node { name: name.clone(), job: None, layer: 0, reads: Vec::new(), row: 0 });
        readers.iter().for_each(|reader| nodes[*reader].reads.push(index));
    }
    nodes
}

/// Gives each box its row: near what it reads, so that few edges cross.
fn place(nodes: &mut [Node<'_>]) {
    let layers = nodes.iter().map(|node| node.layer + 1).max().unwrap_or(0);
    let mut columns: Vec<Vec<usize>> = vec![Vec::new(); layers];
    for (index, node) in nodes.iter().enumerate() {
        columns[node.layer].push(index);
    }
    let rows = |columns: &[Vec<usize>], nodes: &mut [Node<'_>]| {
        for column in columns {
            column.iter().enumerate().for_each(|(row, index)| nodes[*index].row = row);
        }
    };
    rows(&columns, nodes);
    for _ in 0..SWEEPS {
        for column in &mut columns {
            let wanted = |index: usize| {
                let node = &nodes[index];
                let sum: usize = node.reads.iter().map(|from| nodes[*from].row).sum();
                // In thousandths of a row.
                if node.reads.is_empty() { node.row * 1_000 } else { sum * 1_000 / node.reads.len() }
            };
            column.sort_by_key(|index| wanted(*index));
        }
        rows(&columns, nodes);
    }
}

fn draw(node: &Node<'_>, svg: &mut String) {
    let (x, y) = corner(node);
    let class = match node.job {
        None => "o",
        Some(job) if job.tasks.failed > 0 => "f",
        Some(job) if job.activation == "source" => "s",
        Some(_) => "j",
    };
    let _ = write!(
        svg,
        "<g class=\"{class}\"><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"7\"/>\
         <text class=\"n\" x=\"{}\" y=\"{}\">{}</text>",
        escaped(&node.name),
        BOX.0,
        BOX.1,
        x + 10,
        y + 18,
        escaped(&short(&node.name, NAME)),
    );
    let details = match node.job {
        None => ["dataset of another DAG".to_owned(), String::new()],
        Some(job) => [what(job), counts(job)],
    };
    for (line, detail) in details.iter().enumerate().filter(|(_, detail)| !detail.is_empty()) {
        let _ = write!(
            svg,
            "<text class=\"d\" x=\"{}\" y=\"{}\">{}</text>",
            x + 10,
            y + 34 + line * 14,
            escaped(&short(detail, DETAIL))
        );
    }
    *svg += "</g>\n";
}

fn what(job: &DagJob) -> String {
    let runs = job.source.as_ref().or(job.execution_strategy.as_ref());
    let runs = runs.map(|runs| format!("{runs} · ")).unwrap_or_default();
    format!("{runs}{}/{}", job.runtime, job.operator)
}

/// Tasks that there are, and what is published.
fn counts(job: &DagJob) -> String {
    let tasks = job.tasks;
    let parts = [(tasks.queued, "queued"), (tasks.running, "running"), (tasks.failed, "failed")];
    let mut parts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    parts.extend(job.outputs.iter().filter_map(|output| output.dataset_name.as_ref()).map(|name| format!("→ {name}")));
    parts.join(", ")
}

fn short(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// As text of XML, without characters that XML does not know.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::graph::tests::dag;
    use super::*;

    #[test]
    fn a_picture_has_a_box_for_each_job_and_a_line_for_each_edge() {
        let mut dag = dag(&[("import", &[]), ("a", &["import"]), ("b", &["import"]), ("c", &["a", "b", "@prices"])]);
        dag.jobs.iter_mut().find(|job| job.name == "a").unwrap().tasks.failed = 3;
        let svg = render(&dag);
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        // One of the boxes is the background, one the dataset of another DAG.
        assert_eq!(svg.matches("<rect ").count(), 6, "{svg}");
        assert_eq!(svg.matches("marker-end").count(), 5);
        assert!(svg.contains("3 failed") && svg.contains("class=\"f\"") && svg.contains("class=\"o\""));
        for forbidden in ["<script", "http://", "https://", "@import", "url(h"] {
            assert!(!svg.replace("http://www.w3.org/2000/svg", "").contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn names_of_others_are_only_text() {
        let mut dag = dag(&[("import", &[])]);
        dag.jobs[0].name = "</text><script>alert(\"1\")</script>&\u{0}".to_owned();
        dag.jobs[0].operator = "<b>".to_owned();
        let svg = render(&dag);
        assert!(!svg.contains("<script") && !svg.contains("<b>") && !svg.contains('\0'), "{svg}");
        assert!(svg.contains("&lt;/text&gt;&lt;script&gt;"));
    }

    #[test]
    fn a_dag_without_jobs_is_a_picture_too() {
        assert!(render(&dag(&[])).contains("<svg"));
    }
}
