//! Schedules: tasks and runs that are submitted again and again.

use reqwest::Method;
use tenure_contract::user::{
    Page, Schedule, ScheduleChange, ScheduleDeleted, ScheduleSubmission, ScheduleTrigger, ScheduleTriggered,
};

use crate::client::{Call, Client};
use crate::error::ClientError;
use crate::filter;

impl Client {
    /// Creates a schedule. After a lost answer `schedule_exists` means that it was created.
    pub async fn create_schedule(&self, schedule: &ScheduleSubmission) -> Result<Schedule, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["schedules"])).json(schedule)?).await
    }

    /// One page of schedules, without their templates.
    pub async fn schedules(&self, cursor: Option<String>) -> Result<Page<Schedule>, ClientError> {
        let mut url = self.url(&["schedules"]);
        filter::write(&mut url, &[("cursor", &cursor)]);
        self.call(Call::new(Method::GET, url)).await
    }

    /// A schedule by name or id, with its next slots and its last firings.
    pub async fn schedule(&self, name: &str) -> Result<Schedule, ClientError> {
        self.call(Call::new(Method::GET, self.url(&["schedules", name]))).await
    }

    /// Changes what is named about a schedule; everything else stays.
    pub async fn change_schedule(&self, name: &str, change: &ScheduleChange) -> Result<Schedule, ClientError> {
        let call = Call::new(Method::PATCH, self.url(&["schedules", name])).json(change)?;
        self.call(call.repeatable(true)).await
    }

    /// Slots that pass while a schedule is paused are not fired.
    pub async fn pause_schedule(&self, name: &str) -> Result<Schedule, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["schedules", name, "pause"])).repeatable(true)).await
    }

    /// It goes on with the next slot.
    pub async fn resume_schedule(&self, name: &str) -> Result<Schedule, ClientError> {
        self.call(Call::new(Method::POST, self.url(&["schedules", name, "resume"])).repeatable(true)).await
    }

    /// Submits the work of a schedule now. The same `request_id` again is the same firing.
    pub async fn trigger_schedule(
        &self,
        name: &str,
        request_id: Option<&str>,
    ) -> Result<ScheduleTriggered, ClientError> {
        let body = ScheduleTrigger { request_id: request_id.map(ToOwned::to_owned) };
        let call = Call::new(Method::POST, self.url(&["schedules", name, "trigger"])).json(&body)?;
        self.call(call.repeatable(request_id.is_some())).await
    }

    /// Deletes a schedule; work that it has submitted goes on. After a lost answer `schedule_not_found` means that it is
    /// deleted.
    pub async fn delete_schedule(&self, name: &str) -> Result<ScheduleDeleted, ClientError> {
        self.call(Call::new(Method::DELETE, self.url(&["schedules", name]))).await
    }
}
