/** The server's error message for a form. */
export function Refusal({ error }: { error: string }) {
  if (!error) return null;
  return (
    <p role="alert" className="card bad wrap">
      {error}
    </p>
  );
}
