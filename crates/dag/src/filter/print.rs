use std::fmt::Write;

use tenure_core::dag::{Filter, Literal};

use super::lex::{is_word, keyword};

/// A condition as text. Reading it again gives the same tree.
pub fn print(filter: &Filter) -> String {
    let mut text = String::new();
    write_filter(&mut text, filter);
    text
}

fn write_filter(text: &mut String, filter: &Filter) {
    match filter {
        Filter::And(parts) => join(text, parts, " AND "),
        Filter::Or(parts) => join(text, parts, " OR "),
        Filter::Not(inner) => match &**inner {
            Filter::In { .. } | Filter::Like { .. } | Filter::IsNull { .. } => write_test(text, inner, true),
            inner => {
                text.push_str("NOT ");
                operand(text, inner);
            }
        },
        test => write_test(text, test, false),
    }
}

fn join(text: &mut String, parts: &[Filter], between: &str) {
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            text.push_str(between);
        }
        operand(text, part);
    }
}

fn operand(text: &mut String, filter: &Filter) {
    if matches!(filter, Filter::And(_) | Filter::Or(_)) {
        text.push('(');
        write_filter(text, filter);
        text.push(')');
    } else {
        write_filter(text, filter);
    }
}

fn write_test(text: &mut String, filter: &Filter, negated: bool) {
    let not = if negated { "NOT " } else { "" };
    match filter {
        Filter::Compare { op, field, value } => {
            write_field(text, field);
            let _ = write!(text, " {} ", op.symbol());
            write_literal(text, value);
        }
        Filter::In { field, values } => {
            write_field(text, field);
            let _ = write!(text, " {not}IN (");
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    text.push_str(", ");
                }
                write_literal(text, value);
            }
            text.push(')');
        }
        Filter::Like { field, pattern } => {
            write_field(text, field);
            let _ = write!(text, " {not}LIKE ");
            quote(text, pattern, '\'');
        }
        Filter::IsNull { field } => {
            write_field(text, field);
            let _ = write!(text, " IS {not}NULL");
        }
        Filter::And(_) | Filter::Or(_) | Filter::Not(_) => write_filter(text, filter),
    }
}

fn write_field(text: &mut String, field: &str) {
    if is_word(field) && keyword(field).is_none() {
        text.push_str(field);
    } else {
        quote(text, field, '"');
    }
}

fn write_literal(text: &mut String, value: &Literal) {
    match value {
        Literal::Bool(value) => text.push_str(if *value { "TRUE" } else { "FALSE" }),
        Literal::Int(value) => {
            let _ = write!(text, "{value}");
        }
        Literal::Float(value) => {
            let _ = write!(text, "{value:?}");
        }
        Literal::Text(value) => quote(text, value, '\''),
    }
}

fn quote(text: &mut String, value: &str, quote: char) {
    text.push(quote);
    for c in value.chars() {
        if c == quote {
            text.push(quote);
        }
        text.push(c);
    }
    text.push(quote);
}
