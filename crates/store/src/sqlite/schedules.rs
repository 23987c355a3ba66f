//! Schedules of tasks and runs.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row, params};
use tenure_core::limits;
use tenure_core::time::Timestamp;

use super::{Sqlite, sql};
use crate::error::StoreError;
use crate::identity::page;
use crate::model::Page;
use crate::schedules::{
    DueSchedules, NewSchedule, ScheduleFilter, ScheduleRow, ScheduleSetting, ScheduleStore, TemplateKind, behind,
    from_json, json, place,
};

type Result<T> = std::result::Result<T, StoreError>;

fn schedule(row: &Row<'_>) -> rusqlite::Result<ScheduleRow> {
    let id: String = row.get(0)?;
    let setting = ScheduleSetting {
        kind: TemplateKind::parse(row.get_ref(5)?.as_str()?),
        definition: from_json(row.get_ref(6)?.as_str()?, "definition", &id),
        state: from_json(row.get_ref(7)?.as_str()?, "state", &id),
        paused: row.get(8)?,
        due_at: row.get::<_, Option<i64>>(9)?.map(Timestamp::from_millis),
    };
    Ok(ScheduleRow {
        id,
        tenant: row.get(1)?,
        name: row.get(2)?,
        owner: row.get(3)?,
        maker: row.get(4)?,
        setting,
        version: row.get(10)?,
        created_at: Timestamp::from_millis(row.get(11)?),
        updated_at: Timestamp::from_millis(row.get(12)?),
    })
}

#[async_trait]
impl ScheduleStore for Sqlite {
    async fn create_schedule(&self, new: &NewSchedule) -> Result<Option<ScheduleRow>> {
        let (new, now) = (new.clone(), self.millis());
        self.write("create a schedule", move |tx| {
            let NewSchedule { id, tenant, name, owner, maker, setting, template } = new;
            let params = params![
                id,
                tenant,
                name,
                owner,
                maker,
                setting.kind.as_str(),
                json(&setting.definition),
                template,
                json(&setting.state),
                setting.paused,
                setting.due_at.map(Timestamp::as_millis),
                now,
                limits::SCHEDULES_PER_TENANT as i64,
            ];
            tx.prepare_cached(sql::SCHEDULE_INSERT)?.query_row(params, schedule).optional()
        })
        .await
    }

    async fn schedule(&self, id: &str) -> Result<Option<ScheduleRow>> {
        let id = id.to_owned();
        self.read("read a schedule", move |tx| {
            tx.prepare_cached(sql::SCHEDULE_GET)?.query_row([id], schedule).optional()
        })
        .await
    }

    async fn schedule_named(&self, tenant: &str, name: &str) -> Result<Option<ScheduleRow>> {
        let named = [tenant.to_owned(), name.to_owned()];
        self.read("read a schedule", move |tx| {
            tx.prepare_cached(sql::SCHEDULE_NAMED)?.query_row(named, schedule).optional()
        })
        .await
    }

    async fn schedule_template(&self, id: &str) -> Result<Option<String>> {
        let id = id.to_owned();
        self.read("read a schedule", move |tx| {
            tx.prepare_cached(sql::SCHEDULE_TEMPLATE)?.query_row([id], |row| row.get(0)).optional()
        })
        .await
    }

    async fn schedules(&self, filter: &ScheduleFilter) -> Result<Page<ScheduleRow>> {
        let (own, limit) = (filter.clone(), filter.limit);
        let found = self.read("list schedules", move |tx| {
            let (tenant, name) = behind(own.after.as_deref());
            let params = params![own.tenant, own.owner, tenant, name, limit as i64 + 1];
            tx.prepare_cached(sql::SCHEDULES_LIST)?.query_map(params, schedule)?.collect()
        });
        Ok(page(found.await?, limit, place))
    }

    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules> {
        let now = self.clock.read_process().now;
        self.read("find due schedules", move |tx| {
            let mut due = tx.prepare_cached(sql::SCHEDULES_DUE)?;
            let rows: Vec<ScheduleRow> =
                due.query_map([now.as_millis(), limit as i64], schedule)?.collect::<rusqlite::Result<_>>()?;
            let next: Option<i64> =
                tx.prepare_cached(sql::SCHEDULES_NEXT)?.query_row([now.as_millis()], |row| row.get(0))?;
            let next_at = if rows.len() == limit { Some(now) } else { next.map(Timestamp::from_millis) };
            Ok(DueSchedules { rows, next_at, now })
        })
        .await
    }

    async fn save_schedule(
        &self,
        id: &str,
        seen: i64,
        setting: &ScheduleSetting,
        template: Option<&str>,
        by_user: bool,
    ) -> Result<Option<ScheduleRow>> {
        let (id, setting, template) = (id.to_owned(), setting.clone(), template.map(ToOwned::to_owned));
        let changed_at = by_user.then(|| self.millis());
        self.write("save a schedule", move |tx| {
            let params = params![
                id,
                seen,
                setting.kind.as_str(),
                json(&setting.definition),
                json(&setting.state),
                setting.paused,
                setting.due_at.map(Timestamp::as_millis),
                template,
                changed_at,
            ];
            tx.prepare_cached(sql::SCHEDULE_SAVE)?.query_row(params, schedule).optional()
        })
        .await
    }

    async fn delete_schedule(&self, id: &str) -> Result<bool> {
        let id = id.to_owned();
        self.write("delete a schedule", move |tx| Ok(tx.prepare_cached(sql::SCHEDULE_DELETE)?.execute([id])? > 0)).await
    }
}
