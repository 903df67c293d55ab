import { useState } from "react";
import { Button as AriaButton, Menu, MenuItem, MenuTrigger, Popover } from "react-aria-components";
import type { MissionDetails } from "../api/contract";
import { Button } from "../design/Button";
import { Icon } from "../design/Icon";
import { ActionDialog } from "./ActionDialog";
import { actionsOf, type Action } from "./actions";
import { useCanAct } from "./useCanAct";

const SHOWN = 2;

export function Actions({ mission }: { mission: MissionDetails }) {
  const [chosen, setChosen] = useState<Action | null>(null);
  const canAct = useCanAct();
  const actions = actionsOf(mission);
  if (!canAct || actions.length === 0) return null;
  const first = actions.filter(({ danger }) => !danger).slice(0, SHOWN);
  const rest = actions.filter((action) => !first.includes(action));
  return (
    <div className="row" role="group" aria-label="Actions">
      {first.map((action, index) => (
        <Button key={action.id} kind={index === 0 && action.id !== "send" ? "primary" : "plain"} onClick={() => setChosen(action)}>
          {action.label}
        </Button>
      ))}
      {rest.length > 0 && (
        <MenuTrigger>
          <AriaButton className="button" aria-label="More actions">
            <Icon name="more" />
          </AriaButton>
          <Popover placement="bottom end">
            <Menu className="menu" aria-label="More actions">
              {rest.map((action) => (
                <MenuItem key={action.id} id={action.id} className={action.danger ? "danger" : ""} onAction={() => setChosen(action)}>
                  {action.label}
                </MenuItem>
              ))}
            </Menu>
          </Popover>
        </MenuTrigger>
      )}
      {chosen && <ActionDialog mission={mission} action={chosen} onClose={() => setChosen(null)} />}
    </div>
  );
}
