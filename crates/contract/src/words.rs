//! Words of the user API: sets that may grow. A client keeps a word that it does not know as [`Unknown`](TaskState::Unknown)
//! instead of failing.

macro_rules! words {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[$about:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$about])* $variant,)+
            /// A word of a newer server.
            Unknown(String),
        }

        impl $name {
            /// Every word that is known, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)+
                    Self::Unknown(word) => word,
                }
            }

            /// Reads what a person wrote: any case, and both spellings of *canceled*. `None` if the word is not known.
            pub fn parse(text: &str) -> Option<Self> {
                let plain = |text: &str| text.to_ascii_lowercase().replace("cancell", "cancel");
                let text = plain(text);
                Self::ALL.iter().find(|word| plain(word.as_str()) == text).cloned()
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, word: &&str) -> bool {
                self.as_str() == *word
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = <String as serde::Deserialize>::deserialize(deserializer)?;
                Ok(match word.as_str() {
                    $($word => Self::$variant,)+
                    _ => Self::Unknown(word),
                })
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .description(Some(concat!($($doc, "\n"),+).trim()))
                    .enum_values(Some([$($word),+]))
                    .into()
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}
    };
}

pub(crate) use words;

words! {
    /// State of a task. `Blocked` and `Skipped` occur only in runs.
    TaskState {
        /// Waits for other tasks of its run.
        Blocked = "Blocked",
        /// Waits for its time: a delay, or the back-off before a retry.
        Scheduled = "Scheduled",
        /// Can be granted to a worker.
        Ready = "Ready",
        /// A worker holds it, or it is on its way to one.
        Running = "Running",
        Succeeded = "Succeeded",
        Failed = "Failed",
        Canceled = "Canceled",
        /// A task that it depends on did not succeed.
        Skipped = "Skipped",
    }
}

impl TaskState {
    /// Whether a task in this state has ended. It may still be retried.
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Canceled | Self::Skipped)
    }
}

words! {
    /// State of a run.
    RunState {
        Running = "Running",
        /// It was asked to stop, and some of its tasks still run.
        Canceling = "Canceling",
        Succeeded = "Succeeded",
        Failed = "Failed",
        Canceled = "Canceled",
    }
}

impl RunState {
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Canceled)
    }
}

words! {
    /// State of an attempt.
    AttemptState {
        Running = "Running",
        Succeeded = "Succeeded",
        Failed = "Failed",
        Canceled = "Canceled",
    }
}

words! {
    /// How far a redrive is.
    RedriveState {
        Running = "running",
        /// It was paused, and releases nothing until it is resumed.
        Paused = "paused",
        Done = "done",
        /// It ended before everything was released.
        Canceled = "canceled",
        /// Nothing was released: the dead letters were only counted.
        DryRun = "dry_run",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_words_in_any_case_and_spelling() {
        for text in ["Canceled", "canceled", "CANCELLED", "cancelled"] {
            assert_eq!(TaskState::parse(text), Some(TaskState::Canceled), "{text}");
        }
        assert_eq!(RunState::parse("CANCELLING"), Some(RunState::Canceling));
        assert_eq!(TaskState::parse("dead"), None);
    }

    #[test]
    fn a_word_of_a_newer_server_is_kept() {
        for text in [r#""Running""#, r#""Paused""#] {
            let state: TaskState = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&state).unwrap(), text);
        }
        let state: TaskState = serde_json::from_str(r#""Paused""#).unwrap();
        assert_eq!((state.as_str(), state.is_final()), ("Paused", false));
    }
}
