import { CopyCommand } from "../design/CopyCommand";

interface Props {
  learns: boolean;
  installed: boolean;
  /** The sentence that names the missing data; "" if its place has one. */
  none: string;
}

/** Names the missing data, and the command that would change that. */
export function NothingYet({ learns, installed, none }: Props) {
  return (
    <>
      {none && <p className="soft">{none}</p>}
      {(!learns || !installed) && (
        <p className="row wrap">
          {installed ? "Choices are not learned from outcomes. Turn that on with " : "That needs the optional part chargehand[decisions]: "}
          <CopyCommand command={installed ? "chargehand config set decisions.learned true" : "pip install 'chargehand[decisions]'"} />
        </p>
      )}
    </>
  );
}
