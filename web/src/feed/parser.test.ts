import { expect, it } from "vitest";
import { StreamParser } from "./parser";

const STREAM = ': keep-alive\n\nid: 7\nevent: mission.created\ndata: {"a":1}\n\nid: 8\nevent: reset\ndata:\n\n';

it("gives the same messages however the stream is cut", () => {
  const whole = new StreamParser().feed(STREAM);
  expect(whole).toEqual([
    { id: "7", event: "mission.created", data: '{"a":1}' },
    { id: "8", event: "reset", data: "" },
  ]);
  for (let cut = 1; cut < STREAM.length; cut += 1) {
    const parser = new StreamParser();
    expect([...parser.feed(STREAM.slice(0, cut)), ...parser.feed(STREAM.slice(cut))]).toEqual(whole);
  }
});

it("joins lines of data and keeps the last id", () => {
  const parser = new StreamParser();
  expect(parser.feed("id: 3\ndata: a\ndata: b\n\ndata: c\n\n")).toEqual([
    { id: "3", event: "message", data: "a\nb" },
    { id: "3", event: "message", data: "c" },
  ]);
});

it("gives nothing for a message that is not complete", () => {
  expect(new StreamParser().feed("data: half\n")).toEqual([]);
});
