-- The tables as of the newest script in migrations/versions, which a test holds to be the same.

CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE missions (
    id TEXT NOT NULL,
    project TEXT NOT NULL,
    created TEXT NOT NULL,
    last_seq INTEGER NOT NULL,
    last_hash TEXT NOT NULL,
    epoch INTEGER DEFAULT '0' NOT NULL,
    owner TEXT,
    runnable INTEGER DEFAULT '0' NOT NULL,
    wakes TEXT, -- ISO 8601 in UTC
    parent TEXT, -- the coordinator of a mission that does a task
    news INTEGER DEFAULT '0' NOT NULL, -- 1: the coordinator was not told yet how it stands
    PRIMARY KEY (id)
);
CREATE INDEX missions_by_project ON missions (project, created);
-- Missions that a worker may have to take: they should go on, or somebody held them and may have died.
CREATE INDEX missions_to_take ON missions (created) WHERE runnable = 1 OR owner IS NOT NULL;
-- Missions that wait for a moment and then go on by themselves.
CREATE INDEX missions_to_wake ON missions (wakes) WHERE wakes IS NOT NULL AND runnable = 0;
CREATE INDEX missions_by_parent ON missions (parent, created) WHERE parent IS NOT NULL;
CREATE INDEX missions_with_news ON missions (created) WHERE news = 1;

-- Clustered by mission, so that reading one mission's log touches neighbouring pages only.
CREATE TABLE events (
    mission TEXT NOT NULL,
    seq INTEGER NOT NULL,
    time TEXT NOT NULL,
    type TEXT NOT NULL,
    payload BLOB,
    digest TEXT NOT NULL,
    prev TEXT NOT NULL,
    hash TEXT NOT NULL,
    position INTEGER, -- among the lines of all logs; no part of the hash chain
    PRIMARY KEY (mission, seq),
    FOREIGN KEY (mission) REFERENCES missions (id)
) WITHOUT ROWID;
CREATE UNIQUE INDEX events_by_position ON events (position);
-- Calls to models: what they took and cost is asked over all missions.
CREATE INDEX events_of_models ON events (position) WHERE type = 'model.called';

CREATE TABLE erasures (
    mission TEXT NOT NULL,
    seq INTEGER NOT NULL,
    time TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (mission, seq),
    FOREIGN KEY (mission, seq) REFERENCES events (mission, seq)
);

-- What `fold` makes of each mission's log, written with its lines; see summaries.py.
CREATE TABLE mission_summaries (
    mission TEXT NOT NULL,
    project TEXT NOT NULL,
    user TEXT NOT NULL,
    created TEXT NOT NULL,
    status TEXT NOT NULL, -- while a living worker holds it
    status_unheld TEXT NOT NULL, -- while none does
    form INTEGER NOT NULL, -- 0: stale
    summary BLOB NOT NULL,
    measures BLOB NOT NULL,
    PRIMARY KEY (mission)
);
CREATE INDEX summaries_by_project ON mission_summaries (project, created, mission);
CREATE INDEX summaries_by_form ON mission_summaries (form);

-- The calls to models that a summary has counted.
CREATE TABLE mission_calls (
    mission TEXT NOT NULL,
    call TEXT NOT NULL,
    PRIMARY KEY (mission, call)
) WITHOUT ROWID;

-- A path is bytes on Linux: as text one that is not UTF-8 could not be kept.
CREATE TABLE projects (
    id TEXT NOT NULL,
    path BLOB NOT NULL,
    name TEXT NOT NULL,
    registered TEXT NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE trust (
    project TEXT NOT NULL,
    digest TEXT NOT NULL,
    identity TEXT NOT NULL,
    granted TEXT NOT NULL,
    PRIMARY KEY (project, digest)
);

CREATE TABLE verdicts (
    project TEXT NOT NULL,
    tree TEXT NOT NULL,
    plan_digest TEXT NOT NULL,
    verdict BLOB NOT NULL,
    time TEXT NOT NULL,
    PRIMARY KEY (project, tree, plan_digest)
);

-- A cache: entries are sealed by whoever made them, and none of them is missed.
CREATE TABLE inspections (
    project TEXT NOT NULL,
    "key" TEXT NOT NULL,
    entry BLOB NOT NULL,
    time TEXT NOT NULL,
    PRIMARY KEY (project, "key")
);
CREATE INDEX inspections_by_time ON inspections (project, time);

-- Tests that both passed and failed on one tree that was a base; check_name is the command that runs them.
CREATE TABLE flaky_tests (
    project TEXT NOT NULL,
    check_name TEXT NOT NULL,
    test TEXT NOT NULL, -- '' stands for the whole check
    runs INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    time TEXT NOT NULL,
    PRIMARY KEY (project, check_name, test)
);

CREATE TABLE artifacts (
    id TEXT NOT NULL,
    mission TEXT NOT NULL, -- '' where no mission is meant
    kind TEXT NOT NULL,
    size INTEGER NOT NULL,
    time TEXT NOT NULL,
    PRIMARY KEY (id, mission, kind)
);
CREATE INDEX artifacts_by_mission ON artifacts (mission, time);

-- Money is whole millionths of a USD: sums of them are exact, and a limit is never passed by a rounding.
CREATE TABLE spending (
    call TEXT NOT NULL,
    mission TEXT, -- none for a call that a person made by hand
    attempt TEXT NOT NULL,
    day TEXT NOT NULL,
    reserved BIGINT NOT NULL,
    settled BIGINT,
    known INTEGER NOT NULL,
    time TEXT NOT NULL,
    task TEXT, -- none where the mission has but one
    user TEXT, -- none in rows from before users were known
    PRIMARY KEY (call)
);
CREATE INDEX spending_by_attempt ON spending (attempt);

CREATE TABLE spending_alerts (
    scope TEXT NOT NULL,
    subject TEXT NOT NULL,
    limit_micro BIGINT NOT NULL,
    time TEXT NOT NULL,
    PRIMARY KEY (scope, subject, limit_micro)
);

-- What is booked in `spending` by what limits count it for. A user's row that names nobody has a scope of its own:
-- an empty name is somebody.
CREATE TABLE spending_totals (
    scope TEXT NOT NULL,
    subject TEXT NOT NULL,
    day TEXT NOT NULL, -- '' where all days count
    booked BIGINT NOT NULL,
    PRIMARY KEY (scope, subject, day)
) WITHOUT ROWID;

-- Who may use the server. Of what grants access only a hash is kept: argon2id of passwords, SHA-256 of what has 256
-- random bits.
CREATE TABLE accounts (
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    password TEXT, -- none: only tokens
    disabled INTEGER NOT NULL,
    created TEXT NOT NULL,
    failures INTEGER NOT NULL, -- in a row
    locked_until TEXT,
    PRIMARY KEY (name)
);

CREATE TABLE web_sessions (
    digest TEXT NOT NULL,
    user TEXT NOT NULL,
    kind TEXT NOT NULL, -- 'password', 'external': of an account; 'code': of the user that runs Chargehand here
    created TEXT NOT NULL,
    last_seen TEXT NOT NULL,
    expires TEXT NOT NULL, -- moves on with use
    ends TEXT NOT NULL, -- does not
    issuer TEXT NOT NULL DEFAULT '', -- of an external sign-in, as the next two
    subject TEXT NOT NULL DEFAULT '',
    provider_session TEXT NOT NULL DEFAULT '',
    factor TEXT NOT NULL DEFAULT '', -- the second factor that was shown last: '', 'totp', 'recovery'
    proved TEXT NOT NULL DEFAULT '', -- when
    wrong INTEGER NOT NULL DEFAULT 0, -- codes since then
    PRIMARY KEY (digest)
);
CREATE INDEX web_sessions_by_user ON web_sessions (user);

CREATE TABLE second_factors (
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    secret TEXT NOT NULL, -- of time-based codes, in base 32; of a passkey: its public key in hexadecimal digits
    step INTEGER NOT NULL, -- of the last accepted code; of a passkey: its counter
    created TEXT NOT NULL,
    confirmed INTEGER NOT NULL, -- 0 until a code was shown
    kind TEXT NOT NULL, -- 'totp', 'passkey'
    credential TEXT NOT NULL, -- the id of a passkey, else ''
    PRIMARY KEY (user, name)
);
CREATE UNIQUE INDEX second_factors_by_credential ON second_factors (credential) WHERE credential <> '';

CREATE TABLE passkey_challenges (
    digest TEXT NOT NULL,
    user TEXT NOT NULL, -- who adds a passkey; '': anyone who signs in
    expires TEXT NOT NULL,
    PRIMARY KEY (digest)
);

CREATE TABLE recovery_codes (
    digest TEXT NOT NULL, -- of the account's name and the code
    user TEXT NOT NULL,
    PRIMARY KEY (digest)
);

CREATE TABLE login_codes (
    digest TEXT NOT NULL,
    user TEXT NOT NULL,
    created TEXT NOT NULL,
    expires TEXT NOT NULL,
    used TEXT,
    PRIMARY KEY (digest)
);

CREATE TABLE external_subjects (
    issuer TEXT NOT NULL,
    subject TEXT NOT NULL,
    user TEXT NOT NULL,
    created TEXT NOT NULL,
    by_rule INTEGER NOT NULL DEFAULT 0, -- 1: the account was made at the first sign-in
    PRIMARY KEY (issuer, subject)
);

CREATE TABLE pending_sign_ins (
    digest TEXT NOT NULL, -- of the state; after the callback, of the code for the page
    browser TEXT NOT NULL, -- digest of its cookie
    verifier TEXT NOT NULL, -- of PKCE; useless without the answer of the provider
    return_to TEXT NOT NULL,
    issuer TEXT, -- null before the callback
    subject TEXT,
    expires TEXT NOT NULL,
    provider TEXT NOT NULL DEFAULT '', -- its name in [sign_in]
    provider_session TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (digest)
);

CREATE TABLE network_versions (
    name TEXT NOT NULL,
    number INTEGER NOT NULL, -- from 1
    version TEXT NOT NULL, -- digest of the content and of parent
    parent TEXT NOT NULL, -- the version it was learned from, '' if imported
    content BLOB NOT NULL, -- NDJSON
    author TEXT NOT NULL,
    created TEXT NOT NULL,
    PRIMARY KEY (name, number)
);

CREATE TABLE lessons (
    id TEXT NOT NULL,
    project TEXT NOT NULL,
    user TEXT NOT NULL, -- the author
    shared INTEGER NOT NULL, -- 1: visible to all users of the project
    created TEXT NOT NULL,
    mission TEXT NOT NULL, -- the one it was derived from, '' if a person wrote it
    content BLOB NOT NULL, -- JSON, empty once it is forgotten
    PRIMARY KEY (id)
);
CREATE INDEX lessons_by_project ON lessons (project, user);

CREATE TABLE lesson_uses (
    lesson TEXT NOT NULL,
    mission TEXT NOT NULL,
    shown INTEGER NOT NULL, -- 0: withheld, to compare
    green INTEGER, -- whether the first attempt passed, NULL until the mission ends
    attempts INTEGER,
    cost_usd REAL, -- NULL if unknown
    PRIMARY KEY (lesson, mission)
);
CREATE INDEX lesson_uses_by_mission ON lesson_uses (mission);

CREATE TABLE api_tokens (
    id TEXT NOT NULL,
    digest TEXT NOT NULL,
    user TEXT NOT NULL,
    owner INTEGER NOT NULL, -- 1: of who runs Chargehand here, who has no account
    name TEXT NOT NULL,
    scopes TEXT NOT NULL, -- words
    created TEXT NOT NULL,
    expires TEXT NOT NULL,
    last_used TEXT,
    revoked TEXT,
    PRIMARY KEY (id)
);
CREATE UNIQUE INDEX api_tokens_by_digest ON api_tokens (digest);

CREATE TABLE access_log (
    seq INTEGER NOT NULL,
    time TEXT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    address TEXT NOT NULL,
    outcome TEXT NOT NULL,
    PRIMARY KEY (seq)
);
CREATE INDEX access_log_refused ON access_log (seq) WHERE outcome = 'refused';

-- Thresholds that were crossed; at most one of each rule and subject is raised at a time.
CREATE TABLE alerts (
    seq INTEGER NOT NULL,
    rule TEXT NOT NULL,
    subject TEXT NOT NULL,
    raised TEXT NOT NULL,
    last TEXT NOT NULL,
    value REAL NOT NULL,
    "limit" REAL NOT NULL,
    count INTEGER NOT NULL, -- breaches
    told TEXT NOT NULL,
    told_count INTEGER NOT NULL,
    ended TEXT NOT NULL, -- '' while it is raised
    PRIMARY KEY (seq)
);
CREATE UNIQUE INDEX alerts_raised ON alerts (rule, subject) WHERE ended = '';

-- How far those have read who follow all lines, each with a memo in a form of its own.
CREATE TABLE followers (
    name TEXT NOT NULL,
    revision INTEGER NOT NULL, -- of two that write at once, one finds another
    memo BLOB NOT NULL,
    PRIMARY KEY (name)
);

-- Requests to the server that had a key: what they were and what was answered, so that none is done twice.
CREATE TABLE keyed_requests (
    name TEXT NOT NULL, -- of the key, which is a person's own
    user TEXT NOT NULL,
    asked TEXT NOT NULL,
    begun TEXT NOT NULL,
    status INTEGER NOT NULL, -- of HTTP; 0 until it is answered
    exit_code TEXT NOT NULL,
    answer BLOB, -- NULL where it holds a secret, is too long or too old
    PRIMARY KEY (name)
);
CREATE INDEX keyed_requests_by_user ON keyed_requests (user, begun);

-- What people decided on a change and said to it while they review it; notes until a review is finished.
CREATE TABLE reviews (
    mission TEXT NOT NULL,
    user TEXT NOT NULL,
    revision INTEGER NOT NULL, -- of two who write at once, one finds another
    changed TEXT NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (mission, user)
);

-- Triggers, because a program of the version before may still run, and knows nothing of totals, positions and rows.
CREATE TRIGGER spending_added AFTER INSERT ON spending BEGIN 
    INSERT INTO spending_totals (scope, subject, day, booked)
    SELECT 'attempt', NEW.attempt, '', CASE WHEN NEW.known = 1 THEN NEW.settled ELSE NEW.reserved END
    UNION ALL SELECT 'day', NEW.day, '', CASE WHEN NEW.known = 1 THEN NEW.settled ELSE NEW.reserved END
    UNION ALL SELECT 'user', NEW.user, NEW.day, CASE WHEN NEW.known = 1 THEN NEW.settled ELSE NEW.reserved END WHERE NEW.user IS NOT NULL
    UNION ALL SELECT 'nobody', '', NEW.day, CASE WHEN NEW.known = 1 THEN NEW.settled ELSE NEW.reserved END WHERE NEW.user IS NULL
    UNION ALL SELECT 'mission', NEW.mission, '', CASE WHEN NEW.known = 1 THEN NEW.settled ELSE NEW.reserved END WHERE NEW.mission IS NOT NULL
    UNION ALL SELECT 'task', NEW.task, '', CASE WHEN NEW.known = 1 THEN NEW.settled ELSE NEW.reserved END WHERE NEW.task IS NOT NULL
    ON CONFLICT (scope, subject, day) DO UPDATE SET booked = booked + excluded.booked;
 END;
CREATE TRIGGER spending_settled AFTER UPDATE OF known, settled, reserved ON spending WHEN CASE WHEN OLD.known = 1 THEN OLD.settled ELSE OLD.reserved END <> CASE WHEN NEW.known = 1 THEN NEW.settled ELSE NEW.reserved END BEGIN 
    INSERT INTO spending_totals (scope, subject, day, booked)
    SELECT 'attempt', NEW.attempt, '', CASE WHEN NEW.known = 1 THEN NEW.settled ELSE NEW.reserved END - CASE WHEN OLD.known = 1 THEN OLD.settled ELSE OLD.reserved END
    UNION ALL SELECT 'day', NEW.day, '', CASE WHEN NEW.known = 1 THEN NEW.settled ELSE NEW.reserved END - CASE WHEN OLD.known = 1 THEN OLD.settled ELSE OLD.reserved END
    UNION ALL SELECT 'user', NEW.user, NEW.day, CASE WHEN NEW.known = 1 THEN NEW.settled ELSE NEW.reserved END - CASE WHEN OLD.known = 1 THEN OLD.settled ELSE OLD.reserved END WHERE NEW.user IS NOT NULL
    UNION ALL SELECT 'nobody', '', NEW.day, CASE WHEN NEW.known = 1 THEN NEW.settled ELSE NEW.reserved END - CASE WHEN OLD.known = 1 THEN OLD.settled ELSE OLD.reserved END WHERE NEW.user IS NULL
    UNION ALL SELECT 'mission', NEW.mission, '', CASE WHEN NEW.known = 1 THEN NEW.settled ELSE NEW.reserved END - CASE WHEN OLD.known = 1 THEN OLD.settled ELSE OLD.reserved END WHERE NEW.mission IS NOT NULL
    UNION ALL SELECT 'task', NEW.task, '', CASE WHEN NEW.known = 1 THEN NEW.settled ELSE NEW.reserved END - CASE WHEN OLD.known = 1 THEN OLD.settled ELSE OLD.reserved END WHERE NEW.task IS NOT NULL
    ON CONFLICT (scope, subject, day) DO UPDATE SET booked = booked + excluded.booked;
 END;
CREATE TRIGGER spending_removed AFTER DELETE ON spending BEGIN 
    INSERT INTO spending_totals (scope, subject, day, booked)
    SELECT 'attempt', OLD.attempt, '', -(CASE WHEN OLD.known = 1 THEN OLD.settled ELSE OLD.reserved END)
    UNION ALL SELECT 'day', OLD.day, '', -(CASE WHEN OLD.known = 1 THEN OLD.settled ELSE OLD.reserved END)
    UNION ALL SELECT 'user', OLD.user, OLD.day, -(CASE WHEN OLD.known = 1 THEN OLD.settled ELSE OLD.reserved END) WHERE OLD.user IS NOT NULL
    UNION ALL SELECT 'nobody', '', OLD.day, -(CASE WHEN OLD.known = 1 THEN OLD.settled ELSE OLD.reserved END) WHERE OLD.user IS NULL
    UNION ALL SELECT 'mission', OLD.mission, '', -(CASE WHEN OLD.known = 1 THEN OLD.settled ELSE OLD.reserved END) WHERE OLD.mission IS NOT NULL
    UNION ALL SELECT 'task', OLD.task, '', -(CASE WHEN OLD.known = 1 THEN OLD.settled ELSE OLD.reserved END) WHERE OLD.task IS NOT NULL
    ON CONFLICT (scope, subject, day) DO UPDATE SET booked = booked + excluded.booked;
 END;
CREATE TRIGGER event_appended AFTER INSERT ON events WHEN NEW.position IS NULL BEGIN
    UPDATE events SET position = (SELECT coalesce(max(position), 0) + 1 FROM events)
        WHERE mission = NEW.mission AND seq = NEW.seq;
    INSERT INTO mission_summaries VALUES (NEW.mission, '', '', '', '', '', 0, x'', x'')
        ON CONFLICT (mission) DO UPDATE SET form = 0;
END;
CREATE TRIGGER event_changed AFTER UPDATE OF mission, seq, time, type, payload ON events BEGIN
    UPDATE mission_summaries SET form = 0, summary = x'', measures = x''
        WHERE mission IN (OLD.mission, NEW.mission);
END;
CREATE TRIGGER event_removed AFTER DELETE ON events BEGIN
    UPDATE mission_summaries SET form = 0, summary = x'', measures = x'' WHERE mission = OLD.mission;
END;
