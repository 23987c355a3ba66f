use super::Report;
use crate::config::Config;
use crate::server::PreviewAuth;

pub(super) fn check(config: &Config, report: &mut Report) {
    match config.server.preview.auth {
        PreviewAuth::Key => report.pass("server.preview_auth", "preview hosts need a key"),
        PreviewAuth::None => {
            let fix = "set server.preview_auth: key";
            report.risk("server.preview_auth", "everyone who knows the name of a sandbox reaches its ports", fix);
        }
    }
    let Some(compat) = &config.compat else {
        report.pass("compat", "no profile is on");
        return;
    };
    let fix = "move the settings to tenure.yaml and TENURE_ variables, and start the program as tenure";
    report.warn("compat", format!("the profile stacyvm is on: {}", compat.reason), fix);
    for notice in &compat.notices {
        report.warn("compat", notice.clone(), "remove the section, or set enabled: false in it");
    }
}
