import { useQuery } from "@tanstack/react-query";
import { sessionQuery } from "../api/queries";
import { Loaded } from "../design/states";
import { Page } from "../system/Page";
import { AccessLog } from "./AccessLog";
import { Accounts } from "./Accounts";
import { hasPassword } from "./accounts";
import "./accounts.css";
import { OwnPassword } from "./OwnPassword";
import { SecondFactors } from "./SecondFactors";
import { Tokens } from "./Tokens";

export default function AccountsPage() {
  return (
    <Page title="Accounts">
      <Loaded query={useQuery(sessionQuery)} label="Loading your account">
        {(session) => (
          <>
            <p className="soft wrap">
              You are <b>{session.user}</b>, with the role <b>{session.role}</b>.
            </p>
            <Tokens role={session.role} />
            {hasPassword(session) && <SecondFactors />}
            {hasPassword(session) && <OwnPassword user={session.user} />}
            {session.role === "admin" && (
              <>
                <Accounts self={session.user} />
                <AccessLog />
              </>
            )}
          </>
        )}
      </Loaded>
    </Page>
  );
}
