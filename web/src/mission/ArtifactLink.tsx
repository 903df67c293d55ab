import { Icon } from "../design/Icon";

export function ArtifactLink({ id, label }: { id: string; label: string }) {
  return (
    <a className="row small artifact" href={`/api/v1/artifacts/${encodeURIComponent(id)}`} download aria-label={`Download: ${label}`}>
      <Icon name="document" /> {id.slice(0, 8)}
    </a>
  );
}
