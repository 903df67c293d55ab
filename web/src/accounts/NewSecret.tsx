import type { CreatedToken } from "../api/contract";
import { Button } from "../design/Button";
import { copyText } from "../design/copyText";
import { Icon } from "../design/Icon";
import { plainText } from "../format";

/** Shows a new token's secret, which cannot be shown again. */
export function NewSecret({ made, onClose }: { made: CreatedToken; onClose: () => void }) {
  return (
    <section className="card warn stack">
      <h2 className="wrap">Secret of “{plainText(made.token.name)}”</h2>
      <p>
        <Icon name="warning" /> Copy it now: it is shown only once.
      </p>
      <code className="code" aria-label="Secret">
        {made.secret}
      </code>
      <p className="small">
        It goes into <code>Authorization: Bearer TOKEN</code>. Anyone who has it can do whatever the token allows.
      </p>
      <div className="row">
        <Button kind="primary" onClick={() => void copyText(made.secret)}>
          Copy secret
        </Button>
        <Button onClick={onClose}>I have kept it</Button>
      </div>
    </section>
  );
}
