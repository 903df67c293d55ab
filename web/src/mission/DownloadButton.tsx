import { useState, type ComponentProps } from "react";
import { download } from "../api/client";
import { Button } from "../design/Button";
import { toast } from "../design/Toasts";

/** Saves the response of a server path as a file of this name. */
export function DownloadButton({ path, name, ...rest }: { path: string; name: string } & ComponentProps<typeof Button>) {
  const [busy, setBusy] = useState(false);
  const save = async () => {
    setBusy(true);
    try {
      await download(path, name);
    } catch (failure) {
      toast(failure instanceof Error ? failure.message : String(failure), true);
    } finally {
      setBusy(false);
    }
  };
  return <Button busy={busy} onClick={() => void save()} {...rest} />;
}
