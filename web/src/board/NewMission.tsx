export default function NewMission({ onClose }: { onClose: () => void }) { return <button onClick={onClose}>Soon</button>; }
