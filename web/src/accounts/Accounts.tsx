import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Menu, MenuItem, MenuTrigger, Popover, Button as AriaButton } from "react-aria-components";
import type { Account, AccountList } from "../api/contract";
import { listQuery } from "../api/queries";
import { Badge } from "../design/Badge";
import { Loaded } from "../design/states";
import { clock } from "../format";
import { DataTable } from "../system/Page";
import { useNow } from "../useNow";
import { AccountDialog } from "./AccountDialog";
import { changesOf, isLocked, type AccountChange } from "./accounts";
import { NewAccount } from "./NewAccount";

interface Chosen {
  account: Account;
  change: AccountChange;
}

export function Accounts({ self }: { self: string }) {
  const [chosen, setChosen] = useState<Chosen>();
  return (
    <>
      <Loaded query={useQuery(listQuery<AccountList>("users"))} label="Loading accounts">
        {({ users }) => <AccountTable users={users} onChoose={setChosen} />}
      </Loaded>
      <NewAccount />
      {chosen && <AccountDialog {...chosen} own={chosen.account.name === self} onClose={() => setChosen(undefined)} />}
    </>
  );
}

function AccountTable({ users, onChoose }: { users: readonly Account[]; onChoose: (chosen: Chosen) => void }) {
  const now = useNow();
  return (
    <DataTable
      caption="All accounts"
      heads={["Account", "Role", "State", "Password", "Created", "Actions"]}
      rows={users.map((account) => [
        account.name,
        account.role,
        <AccountState key="state" account={account} now={now} />,
        account.has_password ? "yes" : "none: tokens only",
        clock(account.created, 0),
        <Changes key="changes" account={account} now={now} onChoose={(change) => onChoose({ account, change })} />,
      ])}
      none="There are no accounts: only the person who starts the server can log in, with its link."
    />
  );
}

function AccountState({ account, now }: { account: Account; now: number }) {
  if (account.disabled) {
    return (
      <Badge tone="bad" icon="refused">
        Disabled
      </Badge>
    );
  }
  if (account.locked_until !== null && isLocked(account, now)) {
    return (
      <Badge tone="warn" icon="waiting">
        Locked until {clock(account.locked_until, now)}
      </Badge>
    );
  }
  return (
    <Badge tone="good" icon="promoted">
      Open
    </Badge>
  );
}

function Changes({ account, now, onChoose }: { account: Account; now: number; onChoose: (change: AccountChange) => void }) {
  const changes = changesOf(account, now);
  return (
    <MenuTrigger>
      <AriaButton className="button" aria-label={`Change ${account.name}`}>
        Change…
      </AriaButton>
      <Popover placement="bottom end">
        <Menu
          className="menu"
          aria-label={`Changes of ${account.name}`}
          onAction={(id) => {
            const change = changes.find((known) => known.id === id);
            if (change) onChoose(change);
          }}
        >
          {changes.map(({ id, label, danger }) => (
            <MenuItem key={id} id={id} className={danger ? "danger" : ""}>
              {label}
            </MenuItem>
          ))}
        </Menu>
      </Popover>
    </MenuTrigger>
  );
}
