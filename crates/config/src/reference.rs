//! The reference of all keys, as it stands in docs/CONFIGURATION.md.

use super::env;
use super::example::written;
use super::keys::{self, Change, Key, Shape};

const HEAD: &str = "\
# Configuration

Made from the table of keys in `crates/config/src/keys`; a test compares the two, and `TENURE_BLESS=1 cargo test -p
tenure-config reference` writes it anew. `tenure config example` prints a file to begin with, `tenure config show` what
holds and where it was set, `tenure config lint --production` what a production system should set.

## Where values come from

1. Flags of the command: `--listen`, `--store`, `--data`.
2. Variables: `TENURE_` and the path in upper case, with `__` between levels. `auth.worker_token` is
   `TENURE_AUTH__WORKER_TOKEN`. Lists have commas between their entries, maps are JSON objects.
3. The file: `--config`, else `TENURE_CONFIG`, else the first of `./tenure.yaml`, `~/.tenure/config.yaml` and
   `/etc/tenure/tenure.yaml` that exists.
4. The default.

The first that has a value wins, key by key. A file looks like this:

```yaml
server:
  host: 0.0.0.0
  tls:
    cert_file: tls/server.crt
    key_file: tls/server.key
auth:
  enabled: true
  api_key_file: /run/secrets/api-key
  oidc_admin_groups: [platform, oncall]
```

Unknown keys and values that make no sense are errors that name the file and line, or the variable. The process then
ends with code 2.

## Values

**Duration**: numbers with units, one after the other: `250ms`, `30s`, `1h30m`, `7d`; `0` needs no unit. At most 100
years. **Size**: bytes, or a number with `KiB`, `MiB`, `GiB`, `KB`, `MB` or `GB`. **File**: a path; what is not absolute
starts at the folder of the configuration file, or at the working folder when a variable names it.

**Secrets** are never printed. A single secret has a second key that ends in `_file` and names a file with the value;
white space around it is cut. Both together, an empty file and one that cannot be read are errors. A secret of workers
must differ from the keys of users.

**Changes.** Keys marked *reload* are read again within 5 s of a change of a file, and on SIGHUP. A configuration that is
wrong by then is not taken: the former one stays and the error is logged. The others need a restart. Flags and variables
stay what they were at the start.
";

/// The whole page.
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    for (section, meaning) in keys::sections() {
        text += &format!("\n## `{section}`\n\n{meaning}\n\n");
        text += "| Key | Type | Default | Change | Variable | Meaning |\n|---|---|---|---|---|---|\n";
        let prefix = format!("{section}.");
        keys::all().filter(|key| key.path.starts_with(&prefix)).for_each(|key| text += &row(key));
    }
    text
}

fn row(key: &Key) -> String {
    let default = match key.kind.shape() {
        Shape::Text if key.default.is_empty() => String::new(),
        _ => format!("`{}`", written(key).trim_matches('"')),
    };
    let change = match key.change {
        Change::Reload => "reload",
        Change::Restart => "restart",
    };
    let variable = env::name_of(key.path);
    format!("| `{}` | {} | {default} | {change} | `{variable}` | {} |\n", key.path, key.kind.name(), key.doc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_contract::duration;

    #[test]
    fn the_page_is_what_the_table_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIGURATION.md");
        let page = reference();
        if std::env::var_os("TENURE_BLESS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(checked_in == page, "docs/CONFIGURATION.md is not up to date: run this test with TENURE_BLESS=1");
    }

    #[test]
    fn every_key_has_a_row() {
        let page = reference();
        for key in keys::all() {
            assert_eq!(page.matches(&format!("\n| `{}` |", key.path)).count(), 1, "{}", key.path);
        }
    }

    #[test]
    fn defaults_are_durations_where_they_should_be() {
        for key in keys::all().filter(|key| key.kind == keys::Kind::Duration) {
            assert!(duration::parse(key.default).is_some(), "{}", key.path);
        }
    }
}
