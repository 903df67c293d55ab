import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useLocation, useNavigate } from "@tanstack/react-router";
import { useCallback, useEffect, useRef, useState } from "react";
import { logOut } from "../api/client";
import { SecondFactors } from "../accounts/SecondFactors";
import { sessionQuery } from "../api/queries";
import { NewMission } from "../board/NewMission";
import { Button } from "../design/Button";
import { Icon, type IconName } from "../design/Icon";
import { Toasts } from "../design/Toasts";
import { useFeed } from "../feed/hooks";
import { useCommands, type Open } from "./commands";
import { FeedNotice } from "./FeedNotice";
import { HelpDialog } from "./HelpDialog";
import { Proof } from "./Proof";
import { Palette } from "./Palette";
import { toggleTheme, useTheme } from "./theme";
import { useShortcuts } from "./useShortcuts";


const PAGES: readonly { to: string; label: string; icon: IconName }[] = [
  { to: "/", label: "Board", icon: "board" },
  { to: "/agents", label: "Agents & models", icon: "agent" },
  { to: "/projects", label: "Projects", icon: "folder" },
  { to: "/statistics", label: "Statistics", icon: "chart" },
  { to: "/decisions", label: "Decisions", icon: "fork" },
  { to: "/system", label: "System", icon: "system" },
  { to: "/settings", label: "Settings", icon: "settings" },
  { to: "/accounts", label: "Accounts", icon: "person" },
];

function Pages() {
  const nav = useRef<HTMLElement>(null);
  const path = useLocation({ select: ({ pathname }) => pathname });
  // On a phone the page links form one line that is wider than the screen.
  useEffect(() => {
    nav.current?.querySelector("[aria-current=page]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [path]);
  return (
    <nav aria-label="Pages" className="pages" ref={nav}>
      {PAGES.map(({ to, label, icon }) => (
        <Link key={to} to={to} activeOptions={{ exact: to === "/", includeSearch: false }}>
          <Icon name={icon} />
          {label}
        </Link>
      ))}
    </nav>
  );
}

export function Shell() {
  const [shown, setShown] = useState<Open>(null);
  const open = useCallback((what: Open) => setShown(what), []);
  const commands = useCommands(open);
  useShortcuts(commands, open);
  useFeed();
  const mustEnrol = useQuery(sessionQuery).data?.must_enrol;
  const close = () => setShown(null);
  return (
    <>
      <a className="skip-link" href="#content">
        Skip to the content
      </a>
      <header className="top">
        <Link to="/" className="brand" aria-label="Chargehand, to the board">
          <img src="/icon.svg" alt="" width="22" height="22" /> <span>Chargehand</span>
        </Link>
        <Pages />
        <Tools open={open} />
      </header>
      <FeedNotice />
      <main id="content" tabIndex={-1}>
        {mustEnrol ? <Enrol /> : <Outlet />}
      </main>
      <Toasts />
      <Proof />
      {shown === "palette" && <Palette commands={commands} onClose={close} />}
      {shown === "help" && <HelpDialog commands={commands} onClose={close} />}
      {shown === "new" && <NewMission onClose={close} />}
    </>
  );
}

/** Replaces every page while the role of the account needs a second factor that it does not have. */
function Enrol() {
  return (
    <section className="page stack">
      <h1>Add a second factor</h1>
      <p>Your role needs one on this server. Everything else opens once you have added it.</p>
      <SecondFactors />
    </section>
  );
}

function Tools({ open }: { open: (what: Open) => void }) {
  const theme = useTheme();
  const session = useQuery(sessionQuery).data;
  const other = theme === "dark" ? "light" : "dark";
  return (
    <div className="tools">
      <Button kind="quiet" icon="search" aria-label="Find (Ctrl+K)" onClick={() => open("palette")} />
      <Button kind="quiet" icon={theme === "dark" ? "sun" : "moon"} aria-label={`Use the ${other} theme`} onClick={toggleTheme} />
      <Button kind="quiet" icon="help" aria-label="Keyboard help" onClick={() => open("help")} />
      {session && session.role !== "viewer" && (
        <Button kind="primary" icon="plus" onClick={() => open("new")}>
          New mission
        </Button>
      )}
      {session?.accounts && <SignOut user={session.user} />}
    </div>
  );
}

function SignOut({ user }: { user: string }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const leave = async () => {
    const provider = await logOut();
    client.clear();
    if (provider === undefined) await navigate({ to: "/login" });
    else location.assign(provider);
  };
  return (
    <>
      <Link to="/accounts" className="button quiet account" aria-label={`Account of ${user}`}>
        {user}
      </Link>
      <Button kind="quiet" icon="leave" aria-label="Sign out" title="Sign out" onClick={() => void leave()} />
    </>
  );
}
