//! Schedules of tasks and runs.

use async_trait::async_trait;
use tenure_core::limits;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::conn::{Conn, failed};
use super::load::query;
use super::rows::{self, Time};
use super::{Postgres, sql};
use crate::error::StoreError;
use crate::identity::page;
use crate::model::Page;
use crate::schedules::{
    DueSchedules, NewSchedule, ScheduleFilter, ScheduleRow, ScheduleSetting, ScheduleStore, TemplateKind, behind,
    from_json, json, place,
};

type Result<T> = std::result::Result<T, StoreError>;

fn schedule(row: &Row) -> rows::Result<ScheduleRow> {
    let id: String = row.try_get(0)?;
    let setting = ScheduleSetting {
        kind: TemplateKind::parse(row.try_get(5)?),
        definition: from_json(row.try_get(6)?, "definition", &id),
        state: from_json(row.try_get(7)?, "state", &id),
        paused: row.try_get(8)?,
        due_at: rows::time_if(row, 9)?,
    };
    Ok(ScheduleRow {
        id,
        tenant: row.try_get(1)?,
        name: row.try_get(2)?,
        owner: row.try_get(3)?,
        maker: row.try_get(4)?,
        setting,
        version: row.try_get(10)?,
        created_at: rows::time(row, 11)?,
        updated_at: rows::time(row, 12)?,
    })
}

fn first(operation: &'static str, found: &[Row]) -> Result<Option<ScheduleRow>> {
    found.first().map(schedule).transpose().map_err(|error| failed(operation, error))
}

#[async_trait]
impl ScheduleStore for Postgres {
    async fn create_schedule(&self, new: &NewSchedule) -> Result<Option<ScheduleRow>> {
        let operation = "create a schedule";
        let conn = Conn::get(&self.work).await?;
        let now = Time(self.reading(&conn).await?);
        let setting = &new.setting;
        let (definition, state, due_at) = (json(&setting.definition), json(&setting.state), setting.due_at.map(Time));
        let params: [&(dyn ToSql + Sync); 13] = [
            &new.id,
            &new.tenant,
            &new.name,
            &new.owner,
            &new.maker,
            &setting.kind.as_str(),
            &definition,
            &new.template,
            &state,
            &setting.paused,
            &due_at,
            &now,
            &(limits::SCHEDULES_PER_TENANT as i64),
        ];
        first(operation, &self.write_one(operation, conn, sql::SCHEDULE_INSERT, &params).await?)
    }

    async fn schedule(&self, id: &str) -> Result<Option<ScheduleRow>> {
        let conn = Conn::get(&self.read).await?;
        Ok(self.read_all("read a schedule", conn, sql::SCHEDULE_GET, &[&id], schedule).await?.pop())
    }

    async fn schedule_named(&self, tenant: &str, name: &str) -> Result<Option<ScheduleRow>> {
        let conn = Conn::get(&self.read).await?;
        Ok(self.read_all("read a schedule", conn, sql::SCHEDULE_NAMED, &[&tenant, &name], schedule).await?.pop())
    }

    async fn schedule_template(&self, id: &str) -> Result<Option<String>> {
        let conn = Conn::get(&self.read).await?;
        let text = |row: &Row| row.try_get(0);
        Ok(self.read_all("read a schedule", conn, sql::SCHEDULE_TEMPLATE, &[&id], text).await?.pop())
    }

    async fn schedules(&self, filter: &ScheduleFilter) -> Result<Page<ScheduleRow>> {
        let conn = Conn::get(&self.read).await?;
        let (tenant, name) = behind(filter.after.as_deref());
        let limit = filter.limit as i64 + 1;
        let params: [&(dyn ToSql + Sync); 5] = [&filter.tenant, &filter.owner, &tenant, &name, &limit];
        let found = self.read_all("list schedules", conn, sql::SCHEDULES_LIST, &params, schedule).await?;
        Ok(page(found, filter.limit, place))
    }

    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules> {
        let conn = Conn::get(&self.read).await?;
        let now = self.reading(&conn).await?;
        let fail = |error| failed("find due schedules", error);
        let found = query(&conn, sql::SCHEDULES_DUE, &[&Time(now), &(limit as i64)]).await.map_err(fail)?;
        let next = query(&conn, sql::SCHEDULES_NEXT, &[&Time(now)]).await.map_err(fail)?;
        conn.give_back();
        let rows: Vec<ScheduleRow> = found.iter().map(schedule).collect::<rows::Result<_>>().map_err(fail)?;
        let next_at = if rows.len() == limit { Some(now) } else { rows::time_if(&next[0], 0).map_err(fail)? };
        Ok(DueSchedules { rows, next_at, now })
    }

    async fn save_schedule(
        &self,
        id: &str,
        seen: i64,
        setting: &ScheduleSetting,
        template: Option<&str>,
        by_user: bool,
    ) -> Result<Option<ScheduleRow>> {
        let operation = "save a schedule";
        let conn = Conn::get(&self.work).await?;
        let changed_at = if by_user { Some(Time(self.reading(&conn).await?)) } else { None };
        let (definition, state, due_at) = (json(&setting.definition), json(&setting.state), setting.due_at.map(Time));
        let params: [&(dyn ToSql + Sync); 9] =
            [&id, &seen, &setting.kind.as_str(), &definition, &state, &setting.paused, &due_at, &template, &changed_at];
        first(operation, &self.write_one(operation, conn, sql::SCHEDULE_SAVE, &params).await?)
    }

    async fn delete_schedule(&self, id: &str) -> Result<bool> {
        let conn = Conn::get(&self.work).await?;
        Ok(!self.write_one("delete a schedule", conn, sql::SCHEDULE_DELETE, &[&id]).await?.is_empty())
    }
}
