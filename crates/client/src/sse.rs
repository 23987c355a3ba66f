//! A reader of server-sent events: bytes in, events out.
//!
//! Written here because it bounds what it keeps: the crate `eventsource-stream` collects a line without an end for as long
//! as it comes.

/// Maximum number of bytes of an incomplete event. A longer one does not come from Tenure.
const PENDING_MAX: usize = 1 << 20;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// The last id seen, also when it came with an earlier event.
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    pub(crate) data: String,
}

#[derive(Debug, Default)]
pub(crate) struct Parser {
    line: Vec<u8>,
    event: Event,
}

/// The feed sent more than an event can have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl Parser {
    /// Takes a piece of the body, which may end anywhere, and returns the events that it completes.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Result<Vec<Event>, TooLong> {
        let mut events = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + self.event.data.len() + part.len() > PENDING_MAX {
                return Err(TooLong);
            }
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                events.extend(self.take_line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r'])));
            }
        }
        Ok(events)
    }

    /// An empty line ends an event; every other line adds a field. A line that begins with a colon keeps the
    /// connection alive and means nothing.
    fn take_line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let next = Event { id: self.event.id.clone(), ..Event::default() };
            let event = std::mem::replace(&mut self.event, next);
            return (!event.data.is_empty()).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.event.id = Some(value.to_owned()),
            "event" => self.event.name = value.to_owned(),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, name: &str, data: &str) -> Event {
        Event { id: Some(id.into()), name: name.into(), data: data.into() }
    }

    #[test]
    fn events_are_found_wherever_the_pieces_end() {
        let feed = b": hello\n\nid: 7\nevent: task\ndata: {\"a\":\ndata: 1}\n\nid:8\r\ndata:x\r\n\r\ndata: cut off\n";
        for size in 1..feed.len() {
            let mut parser = Parser::default();
            let events: Vec<_> = feed.chunks(size).flat_map(|piece| parser.push(piece).unwrap()).collect();
            assert_eq!(events, [event("7", "task", "{\"a\":\n1}"), event("8", "", "x")], "pieces of {size}");
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut parser = Parser::default();
        assert_eq!(parser.push(&vec![b'x'; PENDING_MAX + 1]), Err(TooLong));
    }
}
