import { Button } from "../design/Button";
import { copyText } from "../design/copyText";

/** Shows new recovery codes, which cannot be shown again. */
export function NewCodes({ codes, onClose }: { codes: readonly string[]; onClose: () => void }) {
  return (
    <section className="card warn stack">
      <h3>Recovery codes</h3>
      <p>Keep them apart from your device: each opens your account once if you lose it. They are shown only now.</p>
      <code className="code" aria-label="Recovery codes">
        {codes.join("\n")}
      </code>
      <div className="row">
        <Button kind="primary" onClick={() => void copyText(codes.join("\n"))}>
          Copy codes
        </Button>
        <Button onClick={onClose}>I have kept them</Button>
      </div>
    </section>
  );
}
