import type { AlertsDocument, AlertTrial } from "../api/contract";
import { ago, plainText } from "../format";

export interface AlertRow {
  text: string;
  raised: boolean;
  when: string;
  count: number;
}

const RECENT = 10;

/** Returns the raised alerts, then the latest ended ones, as rows. */
export function alertRows(alerts: AlertsDocument, now: number): AlertRow[] {
  return [...alerts.raised, ...alerts.ended.slice(0, RECENT)].map((alert) => ({
    text: plainText(alert.text),
    raised: alert.ended === null,
    when: alert.ended === null ? ago(alert.raised, now) : `until ${ago(alert.ended, now)}`,
    count: alert.count,
  }));
}

/** Returns what prevents alerts from being raised or delivered, or "". */
export function watchNotice(alerts: AlertsDocument, now: number): string {
  const failing = alerts.channels.filter((channel) => channel.problem !== null);
  const looked = alerts.looked === null ? "" : `, the last time ${ago(alerts.looked, now)}`;
  return [
    ...(alerts.watched ? [] : [`Thresholds are not checked now${looked}: this list may be out of date.`]),
    ...failing.map((channel) => `Notices by ${channel.channel} do not arrive: ${plainText(channel.problem ?? "")}.`),
  ].join(" ");
}

/** Returns the result of a test notice, channel by channel. */
export function trialText({ channels }: AlertTrial): string {
  if (channels.length === 0) return "No way for notices is configured. Set one: chargehand config set alerts.webhook URL";
  return channels.map(({ channel, problem }) => `${channel}: ${problem === null ? "sent" : plainText(problem)}.`).join(" ");
}
