//! Policies: what may be spawned. They are matched against what was resolved, so that neither a template nor a default
//! leads around them.

use std::sync::Arc;

use super::Spec;
use super::placement::same_provider;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceType {
    Image,
    Provider,
    Network,
}

impl ResourceType {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Provider => "provider",
            Self::Network => "network",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Image, Self::Provider, Self::Network].into_iter().find(|kind| kind.as_str() == text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Allow,
    Deny,
}

impl Effect {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Allow, Self::Deny].into_iter().find(|effect| effect.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub id: Arc<str>,
    pub resource_type: ResourceType,
    pub effect: Effect,
    pub pattern: String,
}

/// The network of a sandbox without any.
pub const NO_NETWORK: &str = "none";

/// A policy that forbids the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy {policy} denies the {} '{value}'", .resource_type.as_str())]
pub struct Denied {
    pub policy: Arc<str>,
    pub resource_type: ResourceType,
    pub value: String,
}

/// Judges a resolved spec. `policies` are ordered by priority, then age; for each image, provider and network the first
/// that matches decides, and without one it is allowed.
pub fn judge(policies: &[Policy], spec: &Spec) -> Result<(), Denied> {
    judge_one(policies, ResourceType::Image, &spec.image)?;
    judge_one(policies, ResourceType::Provider, &spec.provider)?;
    if spec.allowed_hosts.is_empty() {
        return judge_one(policies, ResourceType::Network, NO_NETWORK);
    }
    spec.allowed_hosts.iter().try_for_each(|host| judge_one(policies, ResourceType::Network, host))
}

fn judge_one(policies: &[Policy], resource_type: ResourceType, value: &str) -> Result<(), Denied> {
    let first = policies.iter().find(|policy| policy.resource_type == resource_type && is_match(policy, value));
    match first {
        Some(policy) if policy.effect == Effect::Deny => {
            Err(Denied { policy: Arc::clone(&policy.id), resource_type, value: value.to_owned() })
        }
        _ => Ok(()),
    }
}

fn is_match(policy: &Policy, value: &str) -> bool {
    let pattern = &policy.pattern;
    match policy.resource_type {
        // An image without a tag is the one tagged `latest`: a pattern for either matches both.
        ResourceType::Image => {
            let tagged = with_tag(value);
            let short = tagged.strip_suffix(":latest").unwrap_or(value);
            [value, &tagged, short].into_iter().any(|name| glob(pattern, name))
        }
        ResourceType::Provider => {
            let alias = ["mock", "process"].into_iter().filter(|alias| same_provider(alias, value));
            glob(pattern, value) || alias.into_iter().any(|alias| glob(pattern, alias))
        }
        ResourceType::Network => glob(pattern, value),
    }
}

fn with_tag(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

/// Whether the whole text matches. `*` is any run of characters and `?` is one, neither of them `/`; `\` takes the next
/// character as it is.
pub fn glob(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // Where to resume after a mismatch: past the last star, and how much it has matched.
    let mut back: Option<(usize, usize)> = None;
    while t < text.len() {
        let (step, fits) = match pattern.get(p) {
            Some('*') => {
                back = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some('?') => (1, text[t] != '/'),
            Some('\\') if p + 1 < pattern.len() => (2, pattern[p + 1] == text[t]),
            Some(other) => (1, *other == text[t]),
            None => (0, false),
        };
        if fits {
            (p, t) = (p + step, t + 1);
            continue;
        }
        match back {
            Some((star, taken)) if text[taken] != '/' => {
                back = Some((star, taken + 1));
                (p, t) = (star, taken + 1);
            }
            _ => return false,
        }
    }
    pattern[p..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(resource_type: ResourceType, effect: Effect, pattern: &str) -> Policy {
        Policy { id: format!("pol-{pattern}").into(), resource_type, effect, pattern: pattern.to_owned() }
    }

    fn image(image: &str) -> Spec {
        Spec { image: image.to_owned(), provider: "docker".to_owned(), ..Spec::default() }
    }

    #[test]
    fn a_star_stops_at_a_slash() {
        for (pattern, text, matches) in [
            ("*", "alpine", true),
            ("*", "library/alpine", false),
            ("*/*", "library/alpine", true),
            ("library/*", "library/alpine:3", true),
            ("library/*", "library/a/b", false),
            ("al*ne", "alpine", true),
            ("al*ne", "alpines", false),
            ("a*b*c", "a-b-b-c", true),
            ("", "", true),
            ("", "a", false),
            ("?", "/", false),
            ("a?c", "abc", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("**", "a/b", false),
            ("*a", "a/a", false),
        ] {
            assert_eq!(glob(pattern, text), matches, "{pattern} {text}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_exponential_time() {
        let pattern = "*a".repeat(200);
        assert!(!glob(&pattern, &"a".repeat(150)));
        assert!(!glob(&format!("{pattern}b"), &"a".repeat(20_000)));
    }

    #[test]
    fn the_first_match_decides_and_without_one_it_is_allowed() {
        let allow_first =
            [policy(ResourceType::Image, Effect::Allow, "alpine:*"), policy(ResourceType::Image, Effect::Deny, "*")];
        assert!(judge(&allow_first, &image("alpine:3")).is_ok());
        let denied = judge(&allow_first, &image("debian")).unwrap_err();
        assert_eq!(&*denied.policy, "pol-*");
        assert!(judge(&allow_first, &image("library/debian")).is_ok(), "a star stops at a slash");
        let deny_first: Vec<_> = allow_first.into_iter().rev().collect();
        assert!(judge(&deny_first, &image("alpine:3")).is_err());
        assert!(judge(&[], &image("x")).is_ok());
    }

    #[test]
    fn an_image_without_a_tag_is_the_latest() {
        let deny = |pattern| [policy(ResourceType::Image, Effect::Deny, pattern)];
        for pattern in ["alpine", "alpine:latest", "alpine:*"] {
            assert!(judge(&deny(pattern), &image("alpine")).is_err(), "{pattern}");
            assert!(judge(&deny(pattern), &image("alpine:latest")).is_err(), "{pattern}");
        }
        assert!(judge(&deny("alpine"), &image("alpine:3")).is_ok());
        assert!(judge(&deny("host:5000/a:latest"), &image("host:5000/a")).is_err());
    }

    #[test]
    fn providers_and_networks_are_judged_too() {
        let deny = |kind, pattern| [policy(kind, Effect::Deny, pattern)];
        assert!(judge(&deny(ResourceType::Provider, "docker"), &image("a")).is_err());
        let mock = Spec { provider: "mock".to_owned(), ..Spec::default() };
        assert!(judge(&deny(ResourceType::Provider, "process"), &mock).is_err());
        assert!(judge(&deny(ResourceType::Network, "*"), &image("a")).is_err());
        let hosts = |hosts: &[&str]| Spec {
            allowed_hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            ..image("a")
        };
        assert!(judge(&deny(ResourceType::Network, "*.bad"), &hosts(&["good.com", "x.bad"])).is_err());
        assert!(judge(&deny(ResourceType::Network, "*.bad"), &hosts(&["good.com"])).is_ok());
    }
}
