//! `dispatch.write_prefixes`: further prefixes that a task may write.

use super::prefix::{Prefix, PrefixError};

const FIELDS: [&str; 5] = ["task_id", "attempt", "dag", "job", "dataset_uuid"];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(&'static str),
}

/// A prefix with names in braces, such as `s3://lake/{dag}/{task_id}/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteTemplate {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("'{{{0}}}' is unknown: use {{task_id}}, {{attempt}}, {{dag}}, {{job}} or {{dataset_uuid}}")]
    Unknown(String),
    #[error("a brace is not closed, or not opened")]
    Brace,
    #[error("the bucket must be fixed")]
    Bucket,
    #[error(transparent)]
    Prefix(#[from] PrefixError),
}

/// What the names stand for.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    pub task_id: &'a str,
    pub attempt: u32,
    pub dag: &'a str,
    pub job: &'a str,
    pub dataset_uuid: &'a str,
}

impl WriteTemplate {
    pub fn parse(text: &str, allow_file: bool) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (field, behind) = after.split_once('}').ok_or(TemplateError::Brace)?;
            let known = FIELDS.into_iter().find(|known| *known == field);
            parts.push(Part::Text(before.to_owned()));
            parts.push(Part::Field(known.ok_or_else(|| TemplateError::Unknown(field.chars().take(40).collect()))?));
            rest = behind;
        }
        parts.push(Part::Text(rest.to_owned()));
        if parts.iter().any(|part| matches!(part, Part::Text(text) if text.contains('}'))) {
            return Err(TemplateError::Brace);
        }
        let template = Self { parts };
        template.expand(&SAMPLE, allow_file)?;
        // With nothing but its first text it has a bucket, too.
        let Some(Part::Text(first)) = template.parts.first() else { return Err(TemplateError::Bucket) };
        if !first.starts_with("file:///") && first.matches('/').count() < 3 {
            return Err(TemplateError::Bucket);
        }
        Ok(template)
    }

    /// The bucket, which is fixed; `None` for a folder.
    pub fn bucket(&self) -> Option<String> {
        self.expand(&SAMPLE, true).ok().and_then(|prefix| prefix.bucket().map(str::to_owned))
    }

    /// Whether no other task can write the same prefix.
    pub fn names_task(&self) -> bool {
        self.parts.contains(&Part::Field("task_id"))
    }

    pub fn expand(&self, values: &Values<'_>, allow_file: bool) -> Result<Prefix, TemplateError> {
        let attempt = values.attempt.to_string();
        let mut text = String::new();
        for part in &self.parts {
            let value = match part {
                Part::Text(fixed) => {
                    text += fixed;
                    continue;
                }
                Part::Field("task_id") => values.task_id,
                Part::Field("attempt") => &attempt,
                Part::Field("dag") => values.dag,
                Part::Field("job") => values.job,
                Part::Field(_) => values.dataset_uuid,
            };
            // A value is one name: it must not lead elsewhere.
            if value.is_empty() || value.contains(['/', '%', '{', '}']) {
                return Err(PrefixError::Path(super::PathProblem::Segment).into());
            }
            text += value;
        }
        Ok(Prefix::parse(&text, allow_file)?)
    }
}

const SAMPLE: Values<'_> = Values {
    task_id: "00000000-0000-0000-0000-000000000000",
    attempt: 1,
    dag: "dag",
    job: "job",
    dataset_uuid: "00000000-0000-0000-0000-000000000000",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_braces_are_filled_in() {
        let template =
            WriteTemplate::parse("s3://lake/{dag}/{job}/{dataset_uuid}/t-{task_id}-{attempt}", false).unwrap();
        let values = Values { task_id: "t1", attempt: 3, dag: "d", job: "j", dataset_uuid: "u" };
        assert_eq!(template.expand(&values, false).unwrap().to_string(), "s3://lake/d/j/u/t-t1-3/");
        assert!(template.names_task() && !WriteTemplate::parse("s3://lake/{dag}", false).unwrap().names_task());
        for job in ["", "..", "a/b", "a%2Fb", "{dag}", "a\\b", "*"] {
            assert!(template.expand(&Values { job, ..values }, false).is_err(), "{job}");
        }
    }

    #[test]
    fn templates_that_make_no_sense() {
        for (text, wanted) in [
            ("s3://lake/{task}/", TemplateError::Unknown("task".into())),
            ("s3://lake/{}/", TemplateError::Unknown(String::new())),
            ("s3://lake/{task_id/", TemplateError::Brace),
            ("s3://lake/task_id}/", TemplateError::Brace),
            ("s3://{dag}/x/", TemplateError::Bucket),
            ("s3://lake{dag}/x/", TemplateError::Bucket),
        ] {
            assert_eq!(WriteTemplate::parse(text, false), Err(wanted), "{text}");
        }
        for text in [
            "",
            "lake/{task_id}",
            "s3://lake/",
            "s3://lake/../{task_id}",
            "file:///lake/{task_id}",
            "s3://lake/*/{dag}",
        ] {
            assert!(matches!(WriteTemplate::parse(text, false), Err(TemplateError::Prefix(_))), "{text}");
        }
        assert!(WriteTemplate::parse("file:///lake/{task_id}", true).is_ok());
    }
}
