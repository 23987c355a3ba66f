use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A mounted hierarchy, and the group of this process in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnGroup {
    pub dir: PathBuf,
    pub v2: bool,
    /// The controllers of a version 1 hierarchy. Those of version 2 are read from the group.
    pub controllers: Vec<String>,
}

/// The groups of this process in all hierarchies that are mounted.
pub(super) fn own_groups() -> std::io::Result<Vec<OwnGroup>> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let groups = std::fs::read_to_string("/proc/self/cgroup")?;
    Ok(parse(&mounts, &groups))
}

fn parse(mounts: &str, groups: &str) -> Vec<OwnGroup> {
    // `3:cpu,cpuacct:/path`, and `0::/path` for version 2.
    let paths: BTreeMap<&str, &str> = groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .collect();
    let mut found: Vec<OwnGroup> = Vec::new();
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let (&[_, _, _, root, mount_point, ..], &[kind, _, options, ..]) = (&left[..], &right[..]) else { continue };
        let (v2, path) = match kind {
            "cgroup2" => (true, paths.get("").copied()),
            "cgroup" => (false, paths.iter().find(|(names, _)| is_hierarchy(names, options)).map(|(_, path)| *path)),
            _ => continue,
        };
        let Some(path) = path else { continue };
        // In a container the mounted tree may begin below the root of the hierarchy.
        let Some(below) = (if root == "/" { Some(path) } else { path.strip_prefix(root) }) else { continue };
        // Joining nothing would leave a slash at the end.
        let dir = Path::new(&unescaped(mount_point)).join(below.trim_start_matches('/')).components().collect();
        let controllers = if v2 { Vec::new() } else { known(options) };
        if !found.iter().any(|group| group.v2 == v2 && group.controllers == controllers) {
            found.push(OwnGroup { dir, v2, controllers });
        }
    }
    found
}

/// Whether the controllers of a line of `/proc/self/cgroup` are the options of this mount.
fn is_hierarchy(names: &str, options: &str) -> bool {
    !names.is_empty() && names.split(',').all(|name| options.split(',').any(|option| option == name))
}

fn known(options: &str) -> Vec<String> {
    options
        .split(',')
        .filter(|option| ["memory", "cpu", "cpuacct", "pids", "freezer"].contains(option))
        .map(str::to_owned)
        .collect()
}

/// The kernel writes a space in a path as `\040`.
fn unescaped(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joint_hierarchies_and_the_unified_one_are_found() {
        let mounts = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:4 - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
";
        let groups = "9:name=systemd:/a\n4:memory:/jobs/7\n1:cpu,cpuacct:/\n0::/b\n";
        let found = parse(mounts, groups);
        let dirs: Vec<_> = found.iter().map(|group| (group.dir.to_str().unwrap_or(""), group.v2)).collect();
        assert_eq!(
            dirs,
            [
                ("/sys/fs/cgroup/cpu,cpuacct", false),
                ("/sys/fs/cgroup/memory/jobs/7", false),
                ("/sys/fs/cgroup/systemd/a", false),
                ("/sys/fs/cgroup/unified/b", true),
            ]
        );
        assert_eq!(found[0].controllers, ["cpu", "cpuacct"]);
    }

    #[test]
    fn a_tree_that_is_mounted_from_below_its_root_is_cut() {
        let mounts = "41 31 0:38 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found = parse(mounts, "0::/docker/x/job\n");
        assert_eq!(found[0].dir, Path::new("/sys/fs/cgroup/job"));
    }
}
