import { DownloadButton } from "./DownloadButton";

export function ArtifactLink({ id, label }: { id: string; label: string }) {
  return (
    <DownloadButton kind="quiet" icon="document" className="small artifact" path={`/artifacts/${encodeURIComponent(id)}`} name={`${id}.txt`} aria-label={`Download: ${label}`}>
      {id.slice(0, 8)}
    </DownloadButton>
  );
}
